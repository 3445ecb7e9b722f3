from __future__ import annotations

from components.commands.verify.registry_state import FileCounts, RegisteredTable, batches
from registry.inputs import FileDraft
from registry.json_text import JsonText
from registry.models import LakeTable, TableMetadata
from tests.parquet_files import as_row

EMPTY = JsonText("{}")


def registered(rows: int, files: int, size: int, table_id: int = 1) -> RegisteredTable:
    table = LakeTable(table_id, "shop", "orders", "s3://b/t", rows, size, files, 0, "active", 0, 0)
    metadata = TableMetadata(1, 1, 1, EMPTY, "parquet", EMPTY, "parquet", "zstd", EMPTY, EMPTY, EMPTY, 0, 0, 0)
    return RegisteredTable(table, metadata)


def add(table: RegisteredTable, name: str, rows: int, partition: str = "") -> None:
    draft = FileDraft(
        file_path=f"s3://b/t/{name}", file_size=10, row_count=rows, schema_version=1, partition_path=partition
    )
    table.add(as_row(draft))


def test_correct_statistics() -> None:
    table = registered(5, 2, 20)
    add(table, "a", 2, "day=1")
    add(table, "b", 3, "day=2")
    table.recorded |= {"day=1": FileCounts(2, 1, 10), "day=2": FileCounts(3, 1, 10), "day=3": FileCounts()}
    assert list(table.wrong_statistics()) == []


def test_every_wrong_number_is_named() -> None:
    table = registered(6, 2, 20)
    add(table, "a", 2, "day=1")
    add(table, "b", 3, "day=2")
    table.recorded |= {"day=1": FileCounts(3, 1, 10), "day=9": FileCounts(1, 0, 0)}
    assert list(table.wrong_statistics()) == [
        "tables: 6 rows, 2 files, 20 bytes recorded, 5 rows, 2 files, 20 bytes counted",
        "table_stats, partition day=1: 3 rows, 1 files, 10 bytes recorded, 2 rows, 1 files, 10 bytes counted",
        "table_stats, partition day=2: nothing recorded, 3 rows, 1 files, 10 bytes counted",
        "table_stats, partition day=9: 1 rows, 0 files, 0 bytes recorded, 0 rows, 0 files, 0 bytes counted",
    ]


def test_batches_are_limited_unless_one_table_is_larger() -> None:
    tables = []
    for table_id, files in enumerate((1, 2, 5, 1, 1, 1)):
        table = registered(0, 0, 0, table_id)
        for number in range(files):
            add(table, str(number), 1)
        tables.append(table)
    assert [[table.table.id for table in batch] for batch in batches(tables, 3)] == [[0, 1], [2], [3, 4, 5]]
    assert list(batches([], 3)) == []
