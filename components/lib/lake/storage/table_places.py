"""Which table a file belongs to: the one whose location contains it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Generic, TypeAlias, TypeVar

from components.lib.lake.storage.locations import BadLocation, Location, parse_file

T = TypeVar("T")

Parts: TypeAlias = tuple[str, ...]


class TablePlaces(Generic[T]):
    """Locations and those who have them. Resolves symbolic links of local paths, which blocks: not for an event loop's
    thread.
    """

    def __init__(self, places: Iterable[tuple[str, T]]) -> None:
        self._directory = lru_cache(maxsize=4096)(os.path.realpath)
        self._owners: dict[Parts, list[T]] = {}
        for location, owner in places:
            parts = self._parts(location, is_file=False)
            if parts is not None:
                self._owners.setdefault(parts, []).append(owner)

    def owners(self, path: str) -> Sequence[T]:
        """Returns those with the deepest location that contains the file: several, if they share it."""
        parts = self._parts(path, is_file=True) or ()
        chain = (self._owners.get(parts[:count]) for count in range(len(parts) - 1, 0, -1))
        return next((found for found in chain if found is not None), ())

    def _parts(self, path: str, *, is_file: bool) -> Parts | None:
        try:
            location = parse_file(path)
        except BadLocation:
            return None  # nothing that could be deleted: see `Roots`
        return None if location is None else self._resolved(location, is_file=is_file)

    def _resolved(self, location: Location, *, is_file: bool) -> Parts:
        if location.scheme == "s3":
            return ("s3", location.root, *(part for part in location.key.split("/") if part))
        directory, name = os.path.split(location.path) if is_file else (location.path, "")
        found = (part for part in self._directory(directory).split("/") if part)
        return ("file", *found, name) if is_file else ("file", *found)


def own_files(
    paths: Iterable[str], *, location: str, directory: str | None = None, others: Iterable[str] = ()
) -> list[str]:
    """Returns those of the paths that belong to the table at `location` and to no other.

    `directory` is where its metadata is, if that is elsewhere. It counts only if none of the `others`, the locations
    of all other tables and the directories of their metadata, is there, inside it or around it. Blocks.
    """
    known = [(place, False) for place in others]
    places = TablePlaces([(location, True), *known])
    if directory is not None:
        inside = f"{directory.rstrip('/')}/x"
        around = TablePlaces([(directory, True)])
        if not places.owners(inside) and not any(around.owners(f"{place.rstrip('/')}/x") for place, _ in known):
            places = TablePlaces([(location, True), (directory, True), *known])
    return [path for path in paths if places.owners(path) == [True]]
