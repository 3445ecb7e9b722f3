"""The contents of a whole registry, so that a test can assert that nothing was written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

from registry.contract import MetadataStore
from registry.models import PUBLISHED, UNPUBLISHED, LakeTable, Row, TableFile, TableStats

Contents: TypeAlias = dict[str, list[Row]]


async def contents(store: MetadataStore) -> Contents:
    async with store.consistent_read() as read:
        return {
            kind.table: [row async for page in read.rows(kind) for row in page] for kind in (*PUBLISHED, *UNPUBLISHED)
        }


@asynccontextmanager
async def unchanged(store: MetadataStore) -> AsyncIterator[None]:
    """Fails if the block leaves any row of any table different."""
    before = await contents(store)
    yield
    assert await contents(store) == before


async def assert_counted(store: MetadataStore, table_id: int) -> None:
    """Statistics of the table and of each partition equal a recount of its files."""
    rows = await contents(store)
    files = [row for row in rows["table_files"] if isinstance(row, TableFile) and row.table_id == table_id]
    counted: dict[str, tuple[int, int, int]] = {}
    for file in files:
        n, count, size = counted.get(file.partition_path, (0, 0, 0))
        counted[file.partition_path] = (n + file.row_count, count + 1, size + file.file_size)
    recorded = {
        row.partition_path: (row.row_count, row.file_count, row.total_size)
        for row in rows["table_stats"]
        if isinstance(row, TableStats) and row.table_id == table_id
    }
    emptied = {path: (0, 0, 0) for path in recorded if path not in counted}
    assert recorded == {**counted, **emptied}
    (table,) = (row for row in rows["tables"] if isinstance(row, LakeTable) and row.id == table_id)
    assert (table.row_count, table.file_count, table.total_size) == tuple(
        sum(one[place] for one in counted.values()) for place in range(3)
    )
