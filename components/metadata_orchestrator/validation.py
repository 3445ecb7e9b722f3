"""Whether a table can be worked with: its location takes files, each schema version follows from the one before."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from astha.subscribers import CheckResult, LakeSettings
from components.lib.lake.schema.evolution import check_evolution
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from components.lib.lake.storage.location_checks import check_warehouse
from components.lib.lake.storage.locations import BadLocation, Location, join, parse
from components.lib.lake.storage.objects import ObjectMissing, Objects, StorageError
from registry.models import TableMetadata
from registry.private_files import Modes, make_directories

_PROBE = ".astha-probe"
"""Never written: asking for it shows whether the storage answers, and whether it lets us in."""


class Inspection:
    def __init__(self, objects: Objects, lake: LakeSettings | None = None) -> None:
        self._objects = objects
        self._lake = lake or LakeSettings()

    async def check_warehouse(self) -> CheckResult:
        return await check_warehouse(self._lake)

    async def try_location(self, location: str) -> str | None:
        """What is wrong with it. A local directory is made if need be."""
        try:
            place = parse(location)
        except BadLocation as problem:
            return str(problem)
        if place.scheme == "file":
            return await asyncio.to_thread(_try_directory, place.path, self._objects.modes)
        return await self._try_bucket(place)

    async def _try_bucket(self, place: Location) -> str | None:
        try:
            await self._objects.get(join(place.uri, _PROBE))
        except ObjectMissing as answer:
            if "NoSuchBucket" in f"{answer} {answer.__cause__}":
                return f"{place.uri}: there is no bucket {place.root!r}: create it"
        except StorageError as error:
            return str(error)
        return None


def probe_of(location: str) -> str:
    """Locations with the same probe need to be tried only once: a bucket is the same for all of its tables."""
    try:
        place = parse(location)
    except BadLocation:
        return location
    return location if place.scheme == "file" else place.root


def bad_versions(versions: Sequence[TableMetadata]) -> dict[int, str]:
    """By version, what is wrong with it. A version is compared with the last good one before it."""
    good: list[TableSchema] = []
    bad: dict[int, str] = {}
    for metadata in sorted(versions, key=lambda version: version.schema_version):
        try:
            schema = TableSchema.of(metadata)
            problems = check_evolution(good[-1], schema, good[:-1]) if good else []
        except SchemaProblem as problem:
            bad[metadata.schema_version] = str(problem)
            continue
        except Exception as error:  # whatever stands there, other tables go on
            bad[metadata.schema_version] = f"can't be read: {error!r}"
            continue
        if problems:
            bad[metadata.schema_version] = "; ".join(problems)
        else:
            good.append(schema)
    return bad


def _try_directory(path: Path, modes: Modes) -> str | None:
    try:
        make_directories(path, modes.directory)
    except OSError as error:
        return f"{path} can't be made: {error.strerror or error}: check the disk and its permissions"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"{path} can't be written to: give the user that Astha runs as the right to"
    return None
