"""Validates tables: the location must accept files, and each schema version must follow from its predecessor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from astha.subscribers import CheckResult, LakeSettings
from components.lib.lake.schema.evolution import check_evolution
from components.lib.lake.schema.table_schema import BY_ENGINES, SchemaProblem, TableSchema
from components.lib.lake.storage.location_checks import check_warehouse
from components.lib.lake.storage.locations import BadLocation, Location, join, parse
from components.lib.lake.storage.objects import ObjectMissing, Objects, StorageError
from registry.models import TableMetadata
from registry.private_files import Modes, make_directories

_PROBE = ".astha-probe"
"""Never written: a read request shows whether storage answers and grants access."""


class TableValidator:
    def __init__(self, objects: Objects, lake: LakeSettings | None = None) -> None:
        self._objects = objects
        self._lake = lake or LakeSettings()

    async def check_warehouse(self) -> CheckResult:
        return await check_warehouse(self._lake)

    async def check_location(self, location: str) -> str | None:
        """Returns the problem, or None. Creates a missing local directory."""
        try:
            parsed = parse(location)
        except BadLocation as problem:
            return str(problem)
        if parsed.scheme == "file":
            return await asyncio.to_thread(_check_directory, parsed.path, self._objects.modes)
        return await self._check_bucket(parsed)

    async def _check_bucket(self, location: Location) -> str | None:
        try:
            await self._objects.get(join(location.uri, _PROBE))
        except ObjectMissing as answer:
            if "NoSuchBucket" in f"{answer} {answer.__cause__}":
                return f"{location.uri}: there is no bucket {location.root!r}: create it"
        except StorageError as error:
            return str(error)
        return None


def probe_of(location: str) -> str:
    """Locations with the same probe need only one check: all tables of a bucket share it."""
    try:
        parsed = parse(location)
    except BadLocation:
        return location
    return location if parsed.scheme == "file" else parsed.root


def invalid_versions(versions: Sequence[TableMetadata]) -> dict[int, str]:
    """Returns the problem of each invalid version. A version is compared with the last valid one before it.

    One that another engine has made through the catalog has followed Iceberg's rules, which allow more.
    """
    valid: list[TableSchema] = []
    invalid: dict[int, str] = {}
    for metadata in sorted(versions, key=lambda version: version.schema_version):
        try:
            schema = TableSchema.read(metadata)
            if schema.unwritable is not None and metadata.storage_engine != BY_ENGINES:
                raise SchemaProblem(schema.unwritable)
            checked = valid and metadata.storage_engine != BY_ENGINES
            problems = check_evolution(valid[-1], schema, valid[:-1]) if checked else []
        except SchemaProblem as problem:
            invalid[metadata.schema_version] = str(problem)
            continue
        except Exception as error:  # a row of any content must not affect other tables
            invalid[metadata.schema_version] = f"can't be read: {error!r}"
            continue
        if problems:
            invalid[metadata.schema_version] = "; ".join(problems)
        else:
            valid.append(schema)
    return invalid


def _check_directory(path: Path, modes: Modes) -> str | None:
    try:
        make_directories(path, modes.directory)
    except OSError as error:
        return f"{path} can't be created: {error.strerror or error}: check the disk and its permissions"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"{path} is not writable: grant the right to the user that Astha runs as"
    return None
