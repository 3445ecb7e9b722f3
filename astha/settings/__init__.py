"""Every setting of the daemon: a file, the environment and flags, the later ones stronger.

    server:                          # astha.yaml, named by --config or ASTHA_CONFIG
      port: 27840
    ASTHA_SERVER__PORT=27840          # the environment; groups and names are joined by two underscores
    --set server.port=27840           # a flag

What is not a setting is refused by name. Only environment variables without a double underscore are left alone:
Kubernetes makes ASTHA_PORT and the like by itself for a service called `astha`.
"""

from astha.settings.groups import LogSettings
from astha.settings.loading import CONFIG_VARIABLE, load_settings
from astha.settings.models import Settings
from astha.settings.registry import DEFAULT_REGISTRY, RegistrySettings
from astha.settings.server import ServerSettings

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_REGISTRY",
    "LogSettings",
    "RegistrySettings",
    "ServerSettings",
    "Settings",
    "load_settings",
]
