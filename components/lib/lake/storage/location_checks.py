"""Whether a table may have a place, and whether that place takes files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from components.lib.lake.storage.locations import BadLocation, Location, join, parse
from components.lib.lake.storage.objects import Objects, StorageError, StorageRefused
from components.lib.lake.storage.roots import Roots
from components.lib.lake.table_lookup import full_name
from registry.models import LakeTable


def require_free(
    location: str, tables: Iterable[LakeTable], *, warehouse: str | None = None, registry_file: Path | None = None
) -> None:
    """BadLocation if it is a root, the warehouse or above it, at or around the registry's own file, or shares files
    with another table: equal to its location, inside it, or around it.
    """
    place = parse(location)
    if not place.key:
        whole = "the whole bucket" if place.scheme == "s3" else "the root of all files"
        raise BadLocation(f"{location} is {whole}: choose a directory or prefix for this table alone")
    if warehouse is not None and _holds(place, parse(warehouse)):
        raise BadLocation(f"{location} holds the warehouse {warehouse}, where other tables go: choose a place below it")
    if registry_file is not None:
        file = Location("file", "", str(registry_file.absolute()).lstrip("/"))
        if _holds(place, file) or _holds(file, place):
            raise BadLocation(f"{location} holds the registry's own file {registry_file}: choose another place")
    other = next((table for table in tables if overlap(location, table.location)), None)
    if other is not None:
        raise BadLocation(
            f"{location} shares files with {full_name(other)} at {other.location}: choose a place for this table alone"
        )


def overlap(one: str, other: str) -> bool:
    """Whether one location is, or is inside, the other."""
    try:
        first, second = parse(one), parse(other)
    except BadLocation:
        return one == other
    return _holds(first, second) or _holds(second, first)


async def try_location(objects: Objects, location: str) -> None:
    """Writes a small object there, reads it back and deletes it. StorageError names the reason and what to do."""
    probe = join(location, f".astha-probe-{uuid4().hex}")
    content = uuid4().bytes
    try:
        await objects.put(probe, content)
        if await objects.get(probe) != content:
            raise StorageRefused(f"{probe} does not have the content that was written: is something else at the place?")
    finally:
        await _deleted(objects, location, probe)


async def _deleted(objects: Objects, location: str, probe: str) -> None:
    """The location need not be one that the registry knows yet."""
    try:
        await objects.delete_many([probe], roots=Roots([location]))
    except StorageError as error:
        if await _exists(objects, probe):
            raise StorageRefused(f"{probe} was written and can't be deleted: {error}") from error


async def _exists(objects: Objects, probe: str) -> bool:
    try:
        return await objects.exists(probe)
    except StorageError:
        return False


def _holds(outer: Location, inner: Location) -> bool:
    if (outer.scheme, outer.root) != (inner.scheme, inner.root):
        return False
    above, below = _parts(outer), _parts(inner)
    return below[: len(above)] == above


def _parts(place: Location) -> list[str]:
    """On local disk without symbolic links: two names of one directory are one place."""
    key = os.path.realpath(place.path) if place.scheme == "file" else place.key
    return [part for part in key.split("/") if part]
