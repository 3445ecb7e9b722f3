"""PostgreSQL's consistent reads of many rows: by ranges of ids where ids are dense, by key where they are not."""

from __future__ import annotations

from typing import Any

import pytest

from registry.connect import open_store
from registry.models import Segment
from registry.stores.postgres.consistent_read import PostgresConsistentRead
from tests.integration.registry.plain_sql import execute_sql, select

INSERT = """
    INSERT INTO segments (id, topic, partition_id, base_offset, end_offset, record_count, size_bytes, s3_bucket, s3_key,
                          byte_offset, created_at, max_timestamp)
    SELECT id, 't', 0, row_number() OVER (ORDER BY id) * 10, row_number() OVER (ORDER BY id) * 10 + 9, 10, 4096,
           CASE WHEN id < 3000 THEN 'bucket' ELSE 'other' END, 'objects/' || id || {ending}, 0, 1700000000000,
           CASE WHEN id % 7 = 0 THEN id END
    FROM ({ids}) AS ids (id)
"""
DENSE = "SELECT generate_series(1, 12000)"
SPARSE = "SELECT generate_series(1, 40000, 10)"
HOLES = f"{DENSE} EXCEPT SELECT generate_series(2500, 9000) UNION SELECT generate_series(900000, 906000)"
LARGE = f"SELECT generate_series({2**63 - 2000}, {2**63 - 2})"


@pytest.mark.parametrize(
    ("ids", "ending", "by_ranges"),
    [
        (DENSE, "''", "only"),
        (DENSE, "CASE WHEN id % 5000 = 0 THEN chr(31) ELSE '' END", "only"),
        (SPARSE, "''", "never"),
        (HOLES, "''", "sometimes"),
        (LARGE, "''", "never"),
    ],
    ids=["dense", "separators", "sparse", "holes", "large"],
)
async def test_all_rows_in_order(
    postgres_url: str, ids: str, ending: str, by_ranges: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute_sql(postgres_url, "INSERT INTO topics VALUES ('t', 1, NULL, '{}', 1, 1)")
    execute_sql(postgres_url, "INSERT INTO partitions VALUES ('t', 0, 0, 1, 1)")
    execute_sql(postgres_url, INSERT.format(ids=ids, ending=ending))
    queries: list[str] = []
    execute = PostgresConsistentRead._execute

    async def recorded(self: PostgresConsistentRead, query: str, values: Any) -> Any:
        queries.append(query)
        return await execute(self, query, values)

    monkeypatch.setattr(PostgresConsistentRead, "_execute", recorded)
    store = await open_store(postgres_url)
    try:
        async with store.consistent_read(["segments"]) as read:
            rows = [row async for page in read.rows(Segment, page=1_000) for row in page]
    finally:
        await store.close()
    fields = ", ".join(Segment.__struct_fields__)
    expected = select(postgres_url, f"SELECT {fields} FROM segments ORDER BY id")
    assert [tuple(getattr(row, name) for name in Segment.__struct_fields__) for row in rows] == expected
    ranges = sum("generate_series" in query for query in queries)
    match by_ranges:
        case "only":
            assert ranges > 0
            assert len(queries) - ranges <= 2, "the first rows, and the end"
        case "sometimes":
            assert 0 < ranges < len(queries) - 1
        case _:
            assert ranges == 0
