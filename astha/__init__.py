"""Astha: the daemon that pushes every committed change of the registry to the components, in order.

In: the registry's changes. Out: typed events, delivered to each component.
Guaranteed: imports go one way, components -> astha -> registry; no sink technology is known here.

For programs, `astha.connect` and `astha.open` open a lake (docs/how-to/python.md). They are loaded by name on first
use, as components are, because they stand above this package; `__init__.pyi` has their types.
"""

from __future__ import annotations

from importlib import import_module

_API = {
    "connect": "components.api:connect",
    "open": "components.api:open_async",
    "AsyncLake": "components.api:AsyncLake",
    "InsertSummary": "components.api:InsertSummary",
    "Lake": "components.api:Lake",
    "NewRecord": "components.lib.streams.format:NewRecord",
    "Record": "components.lib.streams.format:Record",
    "RowsRefused": "components.lib.storage_manager:RowsRefused",
    "Scan": "components.api:Scan",
}


def __dir__() -> list[str]:
    """Lists them before they are loaded, for a shell or a notebook that completes names."""
    return sorted({*globals(), *_API})


def __getattr__(name: str) -> object:
    if name not in _API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _API[name].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        from astha.extras import remedy_for

        raise ModuleNotFoundError(
            f"astha.{name} needs {error.name}, which is not installed: {remedy_for(module, error.name)}",
            name=error.name,
        ) from error
