"""The registry's side: tables, their statistics, and a recount from the files, in one consistent snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import msgspec

from components.commands.verify.diff import FileComparison
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import LiveDeleteFile
from components.lib.lake.table_lookup import full_name
from registry.contract import ConsistentRead, MetadataStore
from registry.models import LakeTable, TableDeleteFile, TableFile, TableMetadata, TableStats

ICEBERG_FORMAT = "parquet"
"""Format of the tables that are in Iceberg; others are only checked against statistics and storage."""


class FileCounts(msgspec.Struct):
    rows: int = 0
    files: int = 0
    size_bytes: int = 0

    def add(self, file: TableFile) -> None:
        self.rows += file.row_count
        self.files += 1
        self.size_bytes += file.file_size

    def __str__(self) -> str:
        return f"{self.rows:,} rows, {self.files:,} files, {self.size_bytes:,} bytes"


class RegisteredTable(msgspec.Struct):
    table: LakeTable
    metadata: TableMetadata
    digest: Digest = msgspec.field(default_factory=Digest)
    counted: dict[str, FileCounts] = {}
    recorded: dict[str, FileCounts] = {}
    total: FileCounts = msgspec.field(default_factory=FileCounts)
    deletes: Counter[LiveDeleteFile] = msgspec.field(default_factory=Counter)
    rows_deleted: int = 0  # by position

    @property
    def name(self) -> str:
        return full_name(self.table)

    @property
    def is_iceberg(self) -> bool:
        return self.metadata.format == ICEBERG_FORMAT

    def add(self, file: TableFile) -> None:
        self.digest.add(LiveFile.of(file))
        self.total.add(file)
        self.counted.setdefault(file.partition_path, FileCounts()).add(file)

    def add_deletes(self, file: TableDeleteFile) -> None:
        self.deletes[LiveDeleteFile(file.file_path, file.row_count)] += 1
        if file.content == "position":
            self.rows_deleted += file.row_count

    def wrong_statistics(self) -> Iterator[str]:
        """Yields where `tables` and `table_stats` differ from a recount. A partition without files may have zeros."""
        table = self.table
        recorded = FileCounts(table.row_count, table.file_count, table.total_size)
        if recorded != self.total:
            yield f"tables: {recorded} recorded, {self.total} counted"
        for path in sorted(self.counted.keys() | self.recorded.keys()):
            known, found = self.recorded.get(path), self.counted.get(path, FileCounts())
            if known is None:
                yield f"table_stats, {partition_name(path)}: nothing recorded, {found} counted"
            elif known != found:
                yield f"table_stats, {partition_name(path)}: {known} recorded, {found} counted"


def partition_name(path: str) -> str:
    return f"partition {path}" if path else "the whole table"


async def read_tables(store: MetadataStore, wanted: Collection[int] | None = None) -> dict[int, RegisteredTable]:
    """Reads all tables, or the existing ones of these ids. Memory is bounded by the number of tables and partitions."""
    async with store.consistent_read() as snapshot:
        found = await _tables(snapshot, wanted)
        for scope in [None] if wanted is None else list(found):
            async for stats in snapshot.rows(TableStats, table_id=scope):
                for row in (row for row in stats if row.table_id in found):
                    counts = FileCounts(row.row_count, row.file_count, row.total_size)
                    found[row.table_id].recorded[row.partition_path] = counts
            async for files in snapshot.rows(TableFile, table_id=scope):
                for file in (file for file in files if file.table_id in found):
                    found[file.table_id].add(file)
            await _read_deletes(snapshot, found, scope)
    return found


async def _read_deletes(snapshot: ConsistentRead, found: dict[int, RegisteredTable], table_id: int | None) -> None:
    async for page in snapshot.rows(TableDeleteFile, table_id=table_id):
        for file in (file for file in page if file.table_id in found):
            found[file.table_id].add_deletes(file)


async def _tables(snapshot: ConsistentRead, wanted: Collection[int] | None) -> dict[int, RegisteredTable]:
    newest: dict[int, TableMetadata] = {}
    for scope in [None] if wanted is None else wanted:
        async for versions in snapshot.rows(TableMetadata, table_id=scope):
            for row in versions:
                if row.table_id not in newest or newest[row.table_id].schema_version < row.schema_version:
                    newest[row.table_id] = row
    return {
        table.id: RegisteredTable(table, newest[table.id])
        async for tables in snapshot.rows(LakeTable)
        for table in tables
        if table.id in newest
    }


async def compare_files(store: MetadataStore, comparisons: dict[int, FileComparison]) -> dict[int, RegisteredTable]:
    """Adds the registered files to the tables' comparisons. Returns the tables that still exist, with their delete
    files and without their data files.
    """
    async with store.consistent_read() as snapshot:
        found = await _tables(snapshot, list(comparisons))
        for table_id, comparison in comparisons.items():
            async for files in snapshot.rows(TableFile, table_id=table_id):
                for file in files:
                    comparison.add_registered(LiveFile.of(file), file.id)
            await _read_deletes(snapshot, found, table_id)
    return {table_id: found[table_id] for table_id in comparisons if table_id in found}


def batches(tables: Collection[RegisteredTable], max_files: int) -> Iterator[list[RegisteredTable]]:
    """Yields groups of tables with at most `max_files` files, or a single larger table."""
    batch: list[RegisteredTable] = []
    files = 0
    for table in tables:
        if batch and files + table.digest.files > max_files:
            yield batch
            batch, files = [], 0
        batch.append(table)
        files += table.digest.files
    if batch:
        yield batch
