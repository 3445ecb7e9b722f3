"""Bulk verbs are one statement and one round trip on PostgreSQL, or a constant number, whatever the number of rows.

Counted on the wire, between the driver and the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.inputs import Advance, CatalogCommit, Fence, OffsetDraft, Registration
from registry.models import LakeTable, PartitionLease, TableFile
from tests.doubles.proxy import PostgresProxy
from tests.fixtures.stores import OpenStore
from tests.samples import TABLE, decision, file, segment


@pytest.fixture
async def counted(postgres_url: str, proxy: PostgresProxy, opened: OpenStore) -> MetadataStore:
    return await opened(proxy.url(postgres_url))


@pytest.fixture
async def table(counted: MetadataStore) -> LakeTable:
    await counted.create_topic("orders", 600)
    await counted.ensure_consumer_group("readers")
    await counted.register_agent("agent-1", "host:1")
    return await counted.create_table("db", "t", "s3://lake/t", TABLE)


async def _assert_once(proxy: PostgresProxy, call: Callable[[], Awaitable[object]]) -> None:
    proxy.reset()
    await call()
    assert (proxy.statements, proxy.round_trips) == (1, 1), dict(proxy.messages)


@pytest.mark.parametrize("count", [1, 500])
async def test_streams(counted: MetadataStore, proxy: PostgresProxy, table: LakeTable, count: int) -> None:
    numbers = range(count)
    wanted = [("orders", number) for number in numbers]
    leases: list[PartitionLease] = []

    async def acquire() -> None:
        leases.extend(await counted.acquire_partition_leases(wanted, "agent-1", 1_000))

    await _assert_once(proxy, acquire)
    assert len(leases) == count
    await _assert_once(proxy, lambda: counted.heartbeat("agent-1"))
    drafts = [segment(0, partition=number) for number in numbers] + [segment(10 * n) for n in range(1, count)]
    fences = [Fence("orders", number, "agent-1", 1) for number in numbers]
    await _assert_once(proxy, lambda: counted.add_segments(drafts))
    more = [segment(100_000 + n * 10, partition=n) for n in numbers]
    await _assert_once(proxy, lambda: counted.add_segments(more, fences=fences))
    offsets = [OffsetDraft("orders", number, 1) for number in numbers]
    await _assert_once(proxy, lambda: counted.commit_offsets("readers", offsets))
    await _assert_once(proxy, lambda: counted.commit_offsets("readers", offsets))
    await _assert_once(proxy, lambda: counted.delete_segments_before("orders", 0, 10 * count))


@pytest.mark.parametrize("count", [1, 500])
async def test_lake(counted: MetadataStore, proxy: PostgresProxy, table: LakeTable, count: int) -> None:
    paths = [f"s3://lake/t/{number}" for number in range(count)]
    files: list[TableFile] = []

    async def add() -> None:
        files.extend(await counted.add_files(table.id, [file(path, partition=path[-1]) for path in paths]))

    async def swap() -> None:
        new = [file(f"{path}-new", partition=path[-1]) for path in paths]
        files[:] = await counted.swap_files(table.id, files, new, operation_id="swap")

    await _assert_once(proxy, lambda: counted.record_intents(paths, purpose="insert", owner="w"))
    await _assert_once(proxy, add)
    steps = [Advance("readers", "orders", number, None, 5) for number in range(count)]
    more = Registration(table_id=table.id, files=[file(f"{path}-more") for path in paths], advances=steps)
    await _assert_once(proxy, lambda: counted.register_files([more]))
    proxy.reset()
    await swap()
    assert proxy.round_trips == 5, "BEGIN, the table's lock, its delete files, the swap, COMMIT"
    assert len(files) == count
    await _assert_once(proxy, lambda: counted.remove_files(table.id, files, reason="x"))
    awaiting = await counted.list_files_awaiting_deletion(limit=2_000)
    assert len(awaiting) == 2 * count
    half = [row.id for row in awaiting[:count]]
    await _assert_once(proxy, lambda: counted.claim_files_awaiting_deletion(half, purpose="deletion", owner="c"))
    await _assert_once(proxy, lambda: counted.forget_deleted_files([row.id for row in awaiting]))
    await counted.record_intents(paths, purpose="insert", owner="w")
    await _assert_once(proxy, lambda: counted.complete_intents(paths))


@pytest.mark.parametrize("count", [1, 1_000])
async def test_commits_through_the_catalog(counted: MetadataStore, proxy: PostgresProxy, count: int) -> None:
    created = CatalogCommit(
        catalog="astha", namespace="db", name="u", expected=None, location="1.json",
        table_id=await counted.reserve_table_id(), create=TABLE, table_location="s3://lake/u", operation="metadata",
    )  # fmt: skip
    await counted.commit_catalog([created])
    paths = [f"s3://lake/u/{number}" for number in range(count)]
    commit = msgspec.structs.replace(created, create=None, table_location=None, expected="1.json", location="2.json")
    append = msgspec.structs.replace(commit, added=[file(path) for path in paths], snapshot_id=1)
    proxy.reset()
    await counted.commit_catalog([append])
    assert proxy.round_trips == 6, "BEGIN, the pointer, the marker, the files, claimed ones, COMMIT"
    overwrite = msgspec.structs.replace(
        commit, expected="2.json", location="3.json", removed=paths, added=[file(f"{path}-new") for path in paths]
    )
    proxy.reset()
    await counted.commit_catalog([overwrite])
    assert proxy.round_trips == 8, "and the table's lock, the removed files"


@pytest.mark.parametrize("count", [1, 500])
async def test_journal(counted: MetadataStore, proxy: PostgresProxy, table: LakeTable, count: int) -> None:
    await _assert_once(proxy, lambda: counted.record_compactions([decision(str(number)) for number in range(count)]))
    ids = [row.id for row in await counted.list_compactions()]
    assert len(ids) == count
    await _assert_once(proxy, lambda: counted.renew_compactions(ids, owner="c"))
    await _assert_once(proxy, lambda: counted.request_cancel(1))


async def test_single_reads(counted: MetadataStore, proxy: PostgresProxy, table: LakeTable) -> None:
    await counted.add_segment(segment(0))
    await _assert_once(proxy, lambda: counted.find_segment_for_offset("orders", 0, 5))
    await _assert_once(proxy, lambda: counted.find_segment_for_offset("orders", 0, 50))
    await _assert_once(proxy, lambda: counted.get_topic("orders"))
    await _assert_once(proxy, lambda: counted.get_partition("orders", 0))
    await _assert_once(proxy, lambda: counted.get_committed_offset("readers", "orders", 0))
    await _assert_once(proxy, lambda: counted.update_high_watermark("orders", 1, 5))
    await _assert_once(proxy, lambda: counted.heartbeat("agent-1"))
