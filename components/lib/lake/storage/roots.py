"""Roots: the locations below which files may be deleted. Nothing else is deleted, whatever a registry row names.

They are the warehouse, `lake.roots` and the locations of the registry's tables. Paths are compared part by part, on
local disk after symbolic links are resolved; a path with `.` or `..`, percent-encoded or not, is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

from components.lib.lake.storage.locations import BadLocation, Location, parse
from registry.contract import LakeTables

Parts: TypeAlias = tuple[str, ...]


class Roots:
    """Resolves symbolic links of local paths, which blocks: not for an event loop's thread."""

    def __init__(self, uris: Iterable[str]) -> None:
        self.uris = tuple(dict.fromkeys(uris))

    def extended(self, uris: Iterable[str]) -> Roots:
        return Roots((*self.uris, *uris))

    def refusal(self, uri: str) -> str | None:
        """Returns why the file must not be deleted, or None if it may be."""
        try:
            location = parse(uri)
        except BadLocation as problem:
            return str(problem)
        bad = next((part for part in location.key.split("/") if _is_ambiguous(part)), None)
        if bad is not None:
            return f"{uri!r} has {bad!r} in its path, which can lead elsewhere"
        if location.scheme == "file":
            inside = any(parent in self._directories for parent in _chain(_resolved(location.path.parent)))
        else:
            parts = tuple(location.key.split("/"))
            inside = any((location.root, parts[:count]) in self._prefixes for count in range(len(parts)))
        return None if inside else f"{uri} is not below the warehouse, lake.roots or the location of a table"

    @cached_property
    def _directories(self) -> frozenset[Parts]:
        found = (_resolved(location.path) for location in self._locations if location.scheme == "file")
        return frozenset(parts for parts in found if len(parts) > 1)  # the whole disk is no root

    @cached_property
    def _prefixes(self) -> frozenset[tuple[str, Parts]]:
        locations = (location for location in self._locations if location.scheme == "s3")
        return frozenset(
            (location.root, tuple(part for part in location.key.split("/") if part)) for location in locations
        )

    @cached_property
    def _locations(self) -> list[Location]:
        found = []
        for uri in self.uris:
            try:
                found.append(parse(uri))
            except BadLocation:
                continue  # the location of an unusable table: no file is below it
        return found


def refusals(roots: Roots, uris: Iterable[str]) -> dict[str, str]:
    """Returns the paths that must not be deleted, with the reasons. Blocks, because `Roots` does."""
    found = ((uri, roots.refusal(uri)) for uri in uris)
    return {uri: reason for uri, reason in found if reason is not None}


async def known_roots(store: LakeTables, roots: Roots, *, above: Sequence[str]) -> Roots:
    """Adds the tables' locations, which are read only if one of the paths is not below ``roots`` itself."""
    prefixes = tuple(f"{root.rstrip('/')}/" for root in roots.uris)
    if all(path.startswith(prefixes) for path in above):
        return roots
    return roots.extended(table.location for table in await store.list_tables())


def _is_ambiguous(part: str) -> bool:
    decoded = part
    while (further := unquote(decoded)) != decoded:
        decoded = further
    return any(piece in (".", "..") for piece in decoded.replace("\\", "/").split("/")) or "\0" in decoded


def _resolved(path: Path) -> Parts:
    return Path(os.path.realpath(path)).parts


def _chain(parts: Parts) -> Iterable[Parts]:
    """Yields the path and all its ancestors."""
    return (parts[:count] for count in range(1, len(parts) + 1))
