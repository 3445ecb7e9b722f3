"""Astha: the daemon that pushes every committed change of the registry to the components, in order.

In: the registry's changes. Out: typed events, delivered to each component.
Guaranteed: imports go one way, components -> astha -> registry; no sink technology is known here.

For programs, `astha.connect` and `astha.open` open a lake (docs/how-to/python.md). They are loaded by name on first
use, as components are, because they stand above this package; `__init__.pyi` has their types.
"""

from __future__ import annotations

from importlib import import_module

_API = {"connect": "connect", "open": "open_async", "Lake": "Lake", "AsyncLake": "AsyncLake"}


def __getattr__(name: str) -> object:
    if name not in _API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("components.api"), _API[name])
