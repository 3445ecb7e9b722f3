"""Components by name: the daemon imports none of them, and none of their technology.

A component is a package ``components.<name>`` with a function ``create(settings, surroundings) -> Subscriber``. One
that is kept elsewhere says where, ``use: package.module:function``; any importable module will do. `create` only
constructs: connections are opened by ``start``, so that `astha check` can look at a component without setting it to
work.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from astha.errors import ConfigError
from astha.subscribers.contract import Subscriber
from astha.subscribers.surroundings import Surroundings


def load_component(
    name: str, settings: Mapping[str, Any], surroundings: Surroundings, use: str | None = None
) -> Subscriber:
    """ConfigError if there is no such component, or if it refuses its settings."""
    package, _, function = (use or f"components.{name}:create").partition(":")
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{package}.".startswith(f"{error.name}."):
            raise ConfigError(f"there is no component {name!r} ({package}): {_remedy(use)}") from error
        raise ConfigError(f"component {name} needs the package {error.name!r}: install it") from error
    create = getattr(module, function, None)
    if create is None:
        raise ConfigError(f"component {name}: {package} has no function `{function}(settings, surroundings)`")
    try:
        subscriber: Subscriber = create(settings, surroundings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"component {name} refuses its settings: {error}") from error
    missing = [
        part for part in ("subscribed_tables", "on_event", "on_health", "on_refresh") if not hasattr(subscriber, part)
    ]
    if missing:
        raise ConfigError(
            f"component {name}: what {package}:{function} made is no Subscriber: it lacks {', '.join(missing)}"
        )
    return subscriber


def _remedy(use: str | None) -> str:
    if use is None:
        return "check the name in subscriptions.yaml, or say where it is with `use: package.module:function`"
    return "install it, or correct `use` in subscriptions.yaml"
