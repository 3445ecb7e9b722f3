"""The state of each Iceberg table, for `astha iceberg status`."""

from __future__ import annotations

import asyncio

import msgspec
from pyiceberg.table import Table

from components.iceberg_updater.committer import is_iceberg
from components.lib.lake.iceberg import (
    ForeignCommit,
    IcebergTables,
    Stamp,
    TableCommit,
    TableProblem,
    TableUnavailable,
    require_format,
    require_supported,
)
from components.lib.lake.iceberg.stamp import SCHEMA_VERSION, STOPPED
from components.lib.lake.updater_state import FailingTable, read_failing_tables
from registry.contract import MetadataStore
from registry.models import LakeTable, TableMetadata


class IcebergTableStatus(msgspec.Struct, frozen=True):
    """`trouble` is the table's pending refresh: the updater retries it by itself unless the table is stopped."""

    table: str
    registered_files: int
    registered_version: int
    snapshot: int | None = None
    position: int | None = None
    digest: str | None = None
    files: int | None = None
    schema_version: int | None = None
    committed_at: int | None = None
    metadata: str | None = None
    stopped: str | None = None
    trouble: FailingTable | None = None

    @property
    def behind(self) -> int | None:
        """Files that the registry has more (or fewer) than the last commit; None if there was no commit."""
        return None if self.files is None else self.registered_files - self.files

    @property
    def state(self) -> str:
        if self.stopped is not None:
            return "stopped"
        if self.trouble is not None:
            return "behind, retrying"
        if self.metadata is None:
            return "not created yet"
        return "current" if not self.behind and self.schema_version == self.registered_version else "behind"


async def read_all_statuses(
    store: MetadataStore, tables: IcebergTables, only: LakeTable | None = None
) -> list[IcebergTableStatus]:
    """Returns the status of each table that is for Iceberg, by name."""
    found = [only] if only is not None else await store.list_tables()
    troubled = await read_failing_tables(store)
    statuses = []
    for table in sorted(found, key=lambda table: (table.database, table.name)):
        newest = await store.get_table_metadata(table.id)
        if newest is not None and is_iceberg([newest]):
            statuses.append(await asyncio.to_thread(read_status, tables, table, newest, troubled.get(table.id)))
    return statuses


def read_status(
    tables: IcebergTables, table: LakeTable, newest: TableMetadata, trouble: FailingTable | None = None
) -> IcebergTableStatus:
    """For a table whose storage does not answer, the status has only what the registry knows."""
    name = f"{table.database}.{table.name}"
    problem = loaded = None
    try:
        loaded = tables.load(table)
    except TableProblem as error:
        problem = str(error)
    except TableUnavailable as error:
        trouble = trouble or FailingTable(table.id, name, str(error), since=0)
    if loaded is None:
        if problem is None and trouble is not None and trouble.stopped:
            problem = trouble.reason
        return IcebergTableStatus(name, table.file_count, newest.schema_version, stopped=problem, trouble=trouble)
    stamp = Stamp.read(loaded.metadata)
    current = loaded.metadata.current_snapshot()
    return IcebergTableStatus(
        table=name,
        snapshot=loaded.metadata.current_snapshot_id,
        position=stamp.position,
        digest=str(stamp.digest),
        files=stamp.digest.files,
        registered_files=table.file_count,
        schema_version=int(loaded.metadata.properties.get(SCHEMA_VERSION, 0)),
        registered_version=newest.schema_version,
        committed_at=None if current is None else current.timestamp_ms,
        metadata=loaded.metadata_location,
        stopped=_reason(loaded) or (trouble.reason if trouble is not None and trouble.stopped else None),
        trouble=trouble,
    )


def _reason(table: Table) -> str | None:
    """Returns the stop reason that the updater wrote, or the problem that the metadata shows."""
    try:
        require_format(table)
        TableCommit(table).require_own()
    except ForeignCommit as foreign:
        try:
            require_supported(table)
        except TableProblem as worse:
            return str(worse)
        return str(foreign)
    except TableProblem as problem:
        return str(problem)
    return table.metadata.properties.get(STOPPED)
