"""Loads components by name: the daemon imports neither them nor the libraries they use.

A component is a package ``components.<name>`` with a function ``create(settings, context) -> Subscriber``. One that
lives elsewhere is named in subscriptions.yaml by ``use: package.module:function``; any importable module will do.
`create` only constructs: ``start`` opens connections, so that `astha check` can inspect a component without running it.
A component that opens its own connections to the registry's database, such as those of the Iceberg catalog, declares
``needs_registry_url = True`` beside that function; others get the store, and no credentials.

There are two kinds of problems. subscriptions.yaml is wrong (an unknown component, or tables or settings that the
component refuses; `create` refuses settings with a ValueError): ConfigError, and the daemon does not start. The
component's own code is unusable (a package is missing, its import or `create` raises, it is not a Subscriber):
ComponentError, and the other components run.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from astha.errors import ComponentError, ConfigError
from astha.extras import remedy_for
from astha.subscribers.base import Component, require_complete
from astha.subscribers.context import ComponentContext
from astha.subscribers.contract import DELIVERIES, Subscriber, unknown_callback
from astha.validation_errors import described

_REQUIRED = ("on_health", "on_refresh")
_OPTIONAL = ("start", "stop")
_REPORT = "correct the component, or remove its entry from subscriptions.yaml"


def load_component(
    name: str, settings: Mapping[str, Any], context: ComponentContext, use: str | None = None
) -> Subscriber:
    """Raises ConfigError if there is no such component or it refuses its settings, ComponentError if its code fails."""
    package, _, function = (use or f"components.{name}:create").partition(":")
    module = _imported(name, package, use)
    create = getattr(module, function, None)
    if create is None:
        raise ConfigError(f"component {name}: {package} has no function `{function}(settings, context)`")
    if not getattr(module, "needs_registry_url", False):
        context = context.without_registry_url()
    try:
        subscriber: Subscriber = create(settings, context)
    except ValidationError as error:
        raise ConfigError(f"component {name} refuses its settings: {described(error)}") from error
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"component {name} refuses its settings: {error}") from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise _failed(name, f"{package}:{function}", package, error) from error
    _require_subscriber(name, f"{package}:{function}", subscriber)
    return subscriber


def _imported(name: str, package: str, use: str | None) -> ModuleType:
    try:
        return importlib.import_module(package)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a SyntaxError, or a module that calls sys.exit
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is not None and f"{package}.".startswith(f"{absent}."):
            raise ConfigError(f"there is no component {name!r} ({package}): {_correction(use)}") from error
        raise _failed(name, f"the import of {package}", package, error) from error


def _failed(name: str, what: str, package: str, error: BaseException) -> ComponentError:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        remedy = remedy_for(package, error.name) or f"install the package {error.name!r}"
        return ComponentError(f"component {name} needs the package {error.name!r}, which is not installed", remedy)
    if isinstance(error, SystemExit):
        return ComponentError(f"component {name}: {what} tried to end the process with code {error.code}", _REPORT)
    return ComponentError(f"component {name}: {what} failed: {type(error).__name__}: {error}", _REPORT)


def _require_subscriber(name: str, made_by: str, subscriber: object) -> None:
    missing = [part for part in ("subscribed_tables", *_REQUIRED) if not _has(name, subscriber, part)]
    if not any(_has(name, subscriber, part) for part in DELIVERIES):
        missing.append(" or ".join(DELIVERIES))
    if missing:
        raise ComponentError(
            f"component {name}: what {made_by} returned is not a Subscriber: it lacks {', '.join(missing)}", _REPORT
        )
    for part in (*DELIVERIES, *_REQUIRED, *_OPTIONAL):
        method = getattr(subscriber, part, None)
        if method is not None and not _asynchronous(method):
            raise ComponentError(
                f"component {name}: {part} of {type(subscriber).__name__} is not asynchronous",
                f"declare it `async def {part}(...)`: the daemon awaits it",
            )
    if isinstance(subscriber, Component):
        try:
            require_complete(subscriber)
        except TypeError as error:
            raise ComponentError(f"component {name}: {error}", _REPORT) from error
    elif (problem := unknown_callback(subscriber)) is not None:
        raise ComponentError(f"component {name}: {problem}", "rename it; a name that starts with `_` is never checked")


def _has(name: str, subscriber: object, part: str) -> bool:
    try:
        return hasattr(subscriber, part)
    except Exception as error:
        raise ComponentError(f"component {name}: its {part} raises {error!r}", _REPORT) from error


def _asynchronous(method: Callable[..., object]) -> bool:
    """Accepts also a function annotated to return an awaitable, and an object whose `__call__` is asynchronous."""
    inner = inspect.unwrap(method)
    while isinstance(inner, partial):
        inner = inner.func
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None)):  # noqa: B004
        return True
    returns = getattr(inner, "__annotations__", {}).get("return")
    return any(word in str(returns) for word in ("Awaitable", "Coroutine", "Future", "Task"))


def _correction(use: str | None) -> str:
    if use is None:
        return "check the name in subscriptions.yaml, or name its module with `use: package.module:function`"
    return "install it, or correct `use` in subscriptions.yaml"
