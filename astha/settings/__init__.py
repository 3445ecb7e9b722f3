"""The settings of the daemon, from a file, secret files, the environment and flags; later ones override earlier ones.

    server:                          # astha.yaml, named by --config or ASTHA_CONFIG
      port: 27840
    $ASTHA_SECRETS/server.token       # a file in the directory of secrets, named for its setting
    ASTHA_SERVER__PORT=27840          # the environment; groups and names are joined by two underscores
    --set server.port=27840           # a flag

An unknown setting is an error. Environment variables without a double underscore are ignored: Kubernetes sets
ASTHA_PORT and the like for a service called `astha`.
"""

from astha.settings.groups import LogSettings
from astha.settings.loading import CONFIG_VARIABLE, load_settings, settings_file
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
    "settings_file",
]
