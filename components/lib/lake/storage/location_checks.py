"""Checks of locations: whether a table may use one, and whether files can be written there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import uuid4

from astha.errors import ConfigError
from astha.subscribers import CheckResult, LakeSettings
from components.lib.lake.storage.locations import (
    BadLocation,
    Location,
    canonical,
    join,
    namespace_directory,
    parse,
    table_location,
)
from components.lib.lake.storage.objects import Objects, StorageError, StorageRefused
from components.lib.lake.storage.roots import Roots
from components.lib.lake.table_lookup import full_name
from registry.models import LakeTable

_CHECK = "warehouse"
_CHECK_TIMEOUT_S = 10.0


def require_free(
    location: str,
    tables: Iterable[LakeTable],
    *,
    warehouse: str | None = None,
    registry_file: Path | None = None,
    namespaces: Iterable[str] = (),
) -> None:
    """Raises `BadLocation` if the location is a root, contains the warehouse, the registry's own file or the directory
    of one of the `namespaces`, or overlaps the location of another table.
    """
    wanted = parse(location)
    if not wanted.key:
        whole = "the whole bucket" if wanted.scheme == "s3" else "the root of all files"
        raise BadLocation(f"{location} is {whole}: choose a directory or prefix for this table alone")
    if warehouse is not None and _contains(wanted, parse(warehouse)):
        raise BadLocation(f"{location} holds the warehouse {warehouse}, where other tables go: choose a place below it")
    if registry_file is not None:
        file = Location("file", "", str(registry_file.absolute()).lstrip("/"))
        if _contains(wanted, file) or _contains(file, wanted):
            raise BadLocation(f"{location} holds the registry's own file {registry_file}: choose another place")
    if warehouse is not None:
        _require_outside_namespaces(location, wanted, warehouse, namespaces)
    other = next((table for table in tables if overlap(location, table.location)), None)
    if other is not None:
        raise BadLocation(
            f"{location} shares files with {full_name(other)} at {other.location}: choose a place for this table alone"
        )


def free_default(warehouse: str, database: str, name: str, tables: Sequence[LakeTable]) -> str:
    """Returns the default location of a new table. A renamed table keeps the location of its former name: then the new
    one gets a random suffix. If a table has the directory of the database, the new one gets a directory beside it.
    """
    usual, suffix = table_location(warehouse, database, name), secrets.token_hex(6)
    directory, _, last = usual.rpartition("/")
    candidates = (usual, f"{usual}-{suffix}", f"{directory}-{suffix}/{last}")
    for location in candidates:
        if not any(overlap(location, table.location) for table in tables):
            return location
    raise BadLocation(f"{usual} is inside the location of another table: choose a location")


def _require_outside_namespaces(location: str, wanted: Location, warehouse: str, namespaces: Iterable[str]) -> None:
    """A table at the directory of a namespace would contain those that are created there by default."""
    directory = parse(warehouse)
    above, below = _parts(directory), _parts(wanted)
    if (directory.scheme, directory.root) != (wanted.scheme, wanted.root) or below[:-1] != above:
        return
    found = next((name for name in namespaces if namespace_directory(name) == below[-1]), None)
    if found is not None:
        raise BadLocation(f"{location} is where the tables of the namespace {found} go: choose a place below it")


def overlap(one: str, other: str) -> bool:
    """Returns whether the locations are equal or one is inside the other."""
    try:
        first, second = parse(one), parse(other)
    except BadLocation:
        return one == other
    return _contains(first, second) or _contains(second, first)


async def probe_location(objects: Objects, location: str) -> None:
    """Writes a small object there, reads it back and deletes it. Raises `StorageError` with the reason and a remedy."""
    probe = join(location, f".astha-probe-{uuid4().hex}")
    content = uuid4().bytes
    try:
        await objects.put(probe, content)
        if await objects.get(probe) != content:
            raise StorageRefused(
                f"{probe} does not have the content that was written: does something else write there?"
            )
    finally:
        await _delete_probe(objects, location, probe)


async def check_warehouse(lake: LakeSettings) -> CheckResult:
    """The `warehouse` check of `astha check`: writes a small object, reads it back and deletes it."""
    try:
        location = canonical(lake.warehouse)
        await probe_location(Objects(lake, timeout_s=_CHECK_TIMEOUT_S, retry_s=_CHECK_TIMEOUT_S), location)
    except ConfigError as error:
        return CheckResult(_CHECK, str(error), "correct lake.warehouse")
    except StorageError as error:
        remedy = "let this user write there, create the bucket, correct lake.s3, or set lake.warehouse to another place"
        return CheckResult(_CHECK, f"{location} takes no files: {error}", remedy)
    return CheckResult(_CHECK, f"{location} takes files and gives them back")


async def _delete_probe(objects: Objects, location: str, probe: str) -> None:
    """`location` is its own root: the registry may not know it yet."""
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


def _contains(outer: Location, inner: Location) -> bool:
    if (outer.scheme, outer.root) != (inner.scheme, inner.root):
        return False
    above, below = _parts(outer), _parts(inner)
    return below[: len(above)] == above


def _parts(location: Location) -> list[str]:
    """Resolves symbolic links on local disk: two names of one directory are one location."""
    key = os.path.realpath(location.path) if location.scheme == "file" else location.key
    return [part for part in key.split("/") if part]
