"""Group leases: which member reads a partition, and whose commits are accepted."""

from __future__ import annotations

import asyncio

import pytest

from registry.contract import MetadataStore
from registry.errors import Fenced, Invalid, NotFound
from registry.inputs import OffsetDraft
from registry.models import GroupLease
from tests.contracts.contents import unchanged
from tests.doubles.clock import ManualClock

TTL = 10_000
KEYS = [("orders", 0), ("orders", 1)]


@pytest.fixture(autouse=True)
async def _topic(store: MetadataStore) -> None:
    await store.create_topic("orders", 3)
    await store.ensure_consumer_group("readers")
    for name in ("a", "b"):
        await store.register_agent(name, "local", group="readers")


async def test_leases_are_acquired_renewed_by_heartbeats_and_released(store: MetadataStore, clock: ManualClock) -> None:
    now = clock.now_ms()
    first, second = await store.acquire_group_leases("readers", KEYS, "a", TTL)
    assert first == GroupLease("readers", "orders", 0, "a", now + TTL, now, 1)
    assert await store.acquire_group_leases("readers", [*KEYS, ("orders", 2)], "b", TTL) == [
        GroupLease("readers", "orders", 2, "b", now + TTL, now, 1)
    ]
    clock.advance(5)
    assert await store.release_group_lease(second)
    assert not await store.release_group_lease(second)
    assert [(lease.member_id, lease.epoch) for lease in await store.list_group_leases("readers")] == [
        ("a", 1), (None, 1), ("b", 1),
    ]  # fmt: skip
    (taken,) = await store.acquire_group_leases("readers", KEYS, "b", TTL)
    assert (taken.partition_id, taken.epoch) == (1, 2)
    await store.heartbeat("a")
    clock.advance(TTL - 1)
    assert [lease.partition_id for lease in await store.acquire_group_leases("readers", KEYS, "b", TTL)] == [1]
    clock.advance(1)
    assert len(await store.acquire_group_leases("readers", KEYS, "b", TTL)) == 2
    assert await store.list_group_leases("readers", topic="others") == []


async def test_groups_have_separate_leases(store: MetadataStore) -> None:
    await store.ensure_consumer_group("others")
    assert len(await store.acquire_group_leases("readers", KEYS, "a", TTL)) == 2
    assert len(await store.acquire_group_leases("others", KEYS, "b", TTL)) == 2
    await store.deregister_agent("a")
    assert [lease.member_id for lease in await store.list_group_leases("readers")] == [None, None]
    await store.delete_consumer_group("others")
    assert await store.list_group_leases("others") == []


async def test_only_the_holder_commits(store: MetadataStore, other: MetadataStore, clock: ManualClock) -> None:
    leases = await store.acquire_group_leases("readers", KEYS, "a", TTL)
    drafts = [OffsetDraft("orders", 0, 5), OffsetDraft("orders", 1, 7)]
    await store.commit_offsets("readers", drafts, leases=leases)
    clock.advance(TTL)
    await store.commit_offsets("readers", drafts, leases=leases)  # not acquired by another member meanwhile
    (taken,) = await other.acquire_group_leases("readers", [("orders", 1)], "b", TTL)
    async with unchanged(store):
        with pytest.raises(Fenced) as caught:
            await store.commit_offsets(
                "readers", [OffsetDraft("orders", 0, 6), OffsetDraft("orders", 1, 8)], leases=leases
            )
    assert caught.value.names == ("orders/1",)
    await store.commit_offsets("readers", [OffsetDraft("orders", 0, 6)], leases=leases[:1])
    await other.commit_offsets("readers", [OffsetDraft("orders", 1, 9)], leases=[taken])
    assert [row.committed_offset for row in await store.get_consumer_offsets("readers")] == [6, 9]


async def test_a_takeover_sees_every_commit_under_the_earlier_lease(
    store: MetadataStore, other: MetadataStore, clock: ManualClock
) -> None:
    """The new holder sees all earlier commits, and no commit under the earlier lease follows."""
    for turn in range(1, 20):
        (lease,) = await store.acquire_group_leases("readers", KEYS[:1], "a", TTL)
        clock.advance(TTL)

        async def commit(lease: GroupLease = lease, offset: int = turn) -> bool:
            try:
                await store.commit_offsets("readers", [OffsetDraft("orders", 0, offset)], leases=[lease])
            except Fenced:
                return False
            return True

        async def take() -> int:
            (taken,) = await other.acquire_group_leases("readers", KEYS[:1], "b", TTL)
            row = await other.get_committed_offset("readers", "orders", 0)
            await other.release_group_lease(taken)
            return 0 if row is None else row.committed_offset

        committed, seen = await asyncio.gather(commit(), take())
        assert (seen == turn) == committed


async def test_missing_things_and_bad_arguments_are_named(store: MetadataStore) -> None:
    with pytest.raises(NotFound, match="agent 'unknown'"):
        await store.acquire_group_leases("readers", KEYS, "unknown", TTL)
    with pytest.raises(NotFound, match="consumer group 'unknown'"):
        await store.acquire_group_leases("unknown", KEYS, "a", TTL)
    with pytest.raises(NotFound, match="partition 9"):
        await store.acquire_group_leases("readers", [("orders", 9)], "a", TTL)
    with pytest.raises(Invalid, match="ttl_ms"):
        await store.acquire_group_leases("readers", KEYS, "a", 0)
    assert await store.acquire_group_leases("readers", [], "a", TTL) == []
    leases = await store.acquire_group_leases("readers", KEYS, "a", TTL)
    await store.ensure_consumer_group("others")
    with pytest.raises(Invalid, match="others"):
        await store.commit_offsets("others", [OffsetDraft("orders", 0, 1)], leases=leases)
