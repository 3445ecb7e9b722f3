from __future__ import annotations

import asyncio

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.errors import Invalid, OutOfSequence, RegistryError
from registry.inputs import ProducerDraft
from tests.contracts.contents import unchanged
from tests.doubles.clock import ManualClock
from tests.samples import segment


@pytest.fixture(autouse=True)
async def _topic(store: MetadataStore) -> None:
    await store.create_topic("orders", 2)


def wrote(first: int, last: int, *, epoch: int = 0, partition: int = 0, producer: str = "p") -> ProducerDraft:
    return ProducerDraft("orders", partition, producer, epoch, first, last, first, last - first + 1)


async def last_of(store: MetadataStore, partition: int = 0, producer: str = "p") -> tuple[int, int, int, int] | None:
    rows = await store.get_producer_sequences([("orders", partition, producer)])
    return (rows[0].epoch, rows[0].last_sequence, rows[0].last_base_offset, rows[0].last_count) if rows else None


@pytest.mark.parametrize("late", [False, True])
async def test_only_the_next_records_of_a_producer_are_accepted(store: MetadataStore, late: bool) -> None:
    if late:
        await store.add_segment(segment(1_000))
    await store.add_segments([segment(0)], producers=[wrote(5, 14)])  # any number to begin with
    assert await last_of(store) == (0, 14, 5, 10)
    async with unchanged(store):
        for first in (0, 5, 14, 16):
            with pytest.raises(OutOfSequence, match="'p'") as caught:
                await store.add_segments([segment(10)], producers=[wrote(first, 20)])
            assert caught.value.names == ("orders/0",)
    await store.add_segments([segment(10)], producers=[wrote(15, 24)])
    assert await last_of(store) == (0, 24, 15, 10)


async def test_a_new_epoch_starts_any_sequence_and_fences_the_old_epoch(store: MetadataStore) -> None:
    await store.add_segments([segment(0)], producers=[wrote(0, 9, epoch=1)])
    await store.add_segments([segment(10)], producers=[wrote(0, 9, epoch=2)])
    async with unchanged(store):
        with pytest.raises(OutOfSequence):
            await store.add_segments([segment(20)], producers=[wrote(10, 19, epoch=1)])


async def test_producers_and_partitions_have_separate_sequences(store: MetadataStore) -> None:
    await store.add_segments(
        [segment(0), segment(0, partition=1)],
        producers=[wrote(0, 9), wrote(7, 8, producer="q"), wrote(3, 3, partition=1)],
    )
    async with unchanged(store):
        with pytest.raises(OutOfSequence) as caught:
            await store.add_segments(
                [segment(10), segment(10, partition=1)], producers=[wrote(10, 19), wrote(3, 3, partition=1)]
            )
        assert caught.value.names == ("orders/1",)
    rows = await store.get_producer_sequences([("orders", 1, "p"), ("orders", 0, "q"), ("orders", 0, "none")])
    assert [(row.partition_id, row.producer_id, row.last_sequence) for row in rows] == [(0, "q", 8), (1, "p", 3)]


async def test_one_of_two_concurrent_appends_is_accepted(store: MetadataStore, other: MetadataStore) -> None:
    for turn in range(4):
        results = await asyncio.gather(
            *(
                by.add_segments([segment(turn * 100 + place * 10)], producers=[wrote(turn, turn)])
                for place, by in enumerate((store, other, store, other))
            ),
            return_exceptions=True,
        )
        assert sum(result is None for result in results) == 1, results
        assert all(result is None or isinstance(result, RegistryError) for result in results)
    assert await last_of(store) == (0, 3, 3, 1)


async def test_bad_producers_are_refused(store: MetadataStore) -> None:
    async with unchanged(store):
        for bad in (
            [wrote(5, 4)],
            [wrote(0, 0), wrote(1, 1)],
            [wrote(0, 0, partition=1)],
            [wrote(0, 0, producer="a/b")],
            [msgspec.structs.replace(wrote(0, 0), epoch=-1)],
        ):
            with pytest.raises(Invalid):
                await store.add_segments([segment(0)], producers=bad)


async def test_idle_producers_are_forgotten(store: MetadataStore, clock: ManualClock) -> None:
    await store.add_segments([segment(0)], producers=[wrote(0, 9, producer=name) for name in ("a", "b", "c")])
    clock.advance(1_000)
    await store.add_segments([segment(10)], producers=[wrote(10, 19, producer="b")])
    assert await store.forget_producers(1_000, limit=1) == 1
    assert await store.forget_producers(1_000) == 1
    assert await store.forget_producers(1_000) == 0
    assert await last_of(store, producer="b") == (0, 19, 10, 10)
    assert await last_of(store, producer="a") is None


async def test_deleting_a_topic_deletes_its_producer_sequences(store: MetadataStore) -> None:
    await store.add_segments([segment(0)], producers=[wrote(0, 9)])
    await store.delete_topic("orders")
    assert await last_of(store) is None
