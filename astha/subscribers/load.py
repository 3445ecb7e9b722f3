"""Components by name: the daemon imports none of them, and none of their technology.

A component is a package ``components.<name>`` with a function ``create(settings, store) -> Subscriber``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from astha.errors import ConfigError
from astha.subscribers.contract import Subscriber
from registry.contract import MetadataStore


def load_component(name: str, settings: Mapping[str, Any], store: MetadataStore) -> Subscriber:
    """ConfigError if there is no such component, or if it refuses its settings."""
    package = f"components.{name}"
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise ConfigError(f"there is no component {name!r}: check the name in subscriptions.yaml") from error
        raise ConfigError(f"component {name} needs the package {error.name!r}: install it") from error
    create = getattr(module, "create", None)
    if create is None:
        raise ConfigError(f"{package} has no function `create(settings, store)`")
    try:
        subscriber: Subscriber = create(settings, store)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"component {name} refuses its settings: {error}") from error
    return subscriber
