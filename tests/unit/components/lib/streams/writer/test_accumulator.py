from __future__ import annotations

import pytest

from components.lib.streams.agents import HeldLease
from components.lib.streams.errors import AppendFailed, Duplicate, OutOfOrder
from components.lib.streams.format import RecordColumns
from components.lib.streams.writer.accumulator import (
    Append,
    Appended,
    AppendId,
    PartitionAppends,
    ProducerState,
    ProducerStates,
    Window,
)
from components.lib.streams.writer.settings import WriterSettings
from registry.models import PartitionLease, ProducerSequence


def lease(partition: int = 0, next_offset: int = 100) -> HeldLease:
    return HeldLease(PartitionLease("orders", partition, "agent", 0, 0, 3), next_offset)


def append(where: HeldLease, count: int, append_id: AppendId | None = None) -> Append:
    return Append(where, RecordColumns.of_values([b"x"] * count, 0), 10, append_id)


async def test_each_append_of_a_partition_gets_its_own_offsets() -> None:
    part = PartitionAppends(lease())
    part.appends = [append(part.lease, 2), append(part.lease, 3), append(part.lease, 1)]
    part.appends[1].result.cancel()  # its caller was cancelled
    part.succeed(100)
    assert part.appends[0].result.result() == Appended("orders", 0, 100, 2)
    assert part.appends[2].result.result() == Appended("orders", 0, 105, 1)
    part.fail(AppendFailed("too late"))
    assert part.appends[0].result.exception() is None


async def test_each_producer_of_a_partition_advances_once() -> None:
    where = lease()
    part = PartitionAppends(where)
    append_ids = [
        AppendId("a", 7),
        None,
        AppendId("b", 0),
        AppendId("a", 9),
        AppendId("b", 0, epoch=2),
        AppendId("b", 2, epoch=2),
    ]
    part.appends = [append(where, 2, append_id) for append_id in append_ids]
    moved = {draft.producer_id: draft for draft in part.producers(100)}
    a, b = moved["a"], moved["b"]
    assert (a.epoch, a.first_sequence, a.last_sequence, a.base_offset, a.record_count) == (0, 7, 10, 106, 2)
    assert (b.epoch, b.first_sequence, b.last_sequence, b.base_offset, b.record_count) == (2, 0, 3, 110, 2)


async def test_a_new_producer_starts_anywhere_and_continues_without_a_gap() -> None:
    known, where = ProducerState(None), lease()
    first = append(where, 2)
    assert known.find_repeated(AppendId("p", 5), 2) is None
    known.remember(AppendId("p", 5), 2, first.result)
    assert known.find_repeated(AppendId("p", 5), 2) is first.result
    assert known.find_repeated(AppendId("p", 7), 1) is None
    for wrong in (4, 6, 8):
        with pytest.raises(OutOfOrder):
            known.find_repeated(AppendId("p", wrong), 2)
    with pytest.raises(Duplicate):
        known.find_repeated(AppendId("p", 6), 1)
    assert known.find_repeated(AppendId("p", 0, epoch=1), 1) is None
    known.remember(AppendId("p", 0, epoch=1), 1, first.result)
    with pytest.raises(OutOfOrder, match="epoch 1 has begun"):
        known.find_repeated(AppendId("p", 7), 1)
    with pytest.raises(OutOfOrder):  # sequence numbers of another epoch
        known.find_repeated(AppendId("p", 5, epoch=1), 2)


async def test_the_registry_remembers_the_last_append() -> None:
    known = ProducerState(ProducerSequence("orders", 0, "p", 1, 9, 40, 3, 0))
    repeated = known.find_repeated(AppendId("p", 7, epoch=1), 3)
    assert repeated is not None
    assert repeated.result() == Appended("orders", 0, 40, 3)
    assert known.find_repeated(AppendId("p", 10, epoch=1), 3) is None
    with pytest.raises(Duplicate, match="no longer known"):
        known.find_repeated(AppendId("p", 0, epoch=1), 3)


SETTINGS = WriterSettings(window_s=0.5, linger_s=0.05, target_appends=5)


async def test_a_window_is_split_by_partitions() -> None:
    window = Window()
    assert not window
    partitions = [lease(number) for number in range(5)]
    for turn in range(10):
        window.add(append(partitions[turn % 5], 1), 0.0)
    assert window.size == 100
    assert [[part.lease.key[1] for part in parts] for parts in window.objects(2)] == [[0, 1], [2, 3], [4]]
    assert all(len(part.appends) == 2 for part in window.parts.values())


async def test_a_window_without_uploads_in_flight_is_uploaded_at_once() -> None:
    window = Window(7.0)
    window.add(append(lease(0), 1), 7.0)
    assert window.closes_at(SETTINGS, uploads_in_flight=False) == float("-inf")


async def test_a_window_stays_open_while_uploads_are_in_flight() -> None:
    window = Window(7.0, opened_during_upload=True)
    for number in range(100):
        window.add(append(lease(number), 1), 7.01)
    assert window.closes_at(SETTINGS, uploads_in_flight=True) == 7.5


async def test_a_window_opened_during_an_upload_waits_for_enough_appends() -> None:
    window = Window(7.0, opened_during_upload=True)
    for number in range(3):
        window.add(append(lease(number), 1), 7.0 + number / 100)
    assert window.closes_at(SETTINGS, uploads_in_flight=False) == 7.02 + 0.05  # no append since
    window.add(append(lease(3), 1), 7.48)
    assert window.closes_at(SETTINGS, uploads_in_flight=False) == 7.5  # the end of the window
    window.add(append(lease(4), 1), 7.49)
    assert window.closes_at(SETTINGS, uploads_in_flight=False) == float("-inf")


@pytest.mark.parametrize("uploads_in_flight", [True, False])
async def test_a_full_window_is_uploaded_at_once(uploads_in_flight: bool) -> None:
    window = Window(7.0, opened_during_upload=True)
    window.add(append(lease(0), 1), 7.0)
    settings = SETTINGS.model_copy(update={"object_bytes" if uploads_in_flight else "block_bytes": window.size})
    assert window.closes_at(settings, uploads_in_flight=uploads_in_flight) == float("-inf")


async def test_only_idle_producers_are_evicted() -> None:
    producers, where = ProducerStates(max_size=3), lease()
    on_its_way = append(where, 1)
    first = producers.add("first", ProducerState(None))
    first.remember(AppendId("first", 0), 1, on_its_way.result)
    for number in range(10):
        producers.add(str(number), ProducerState(None))
    assert producers.find("first") is first
    assert len(producers) == 3, "the oldest that were idle have gone"
    assert producers.find("0") is None
    assert producers.add("9", ProducerState(None)) is producers.find("9")
    on_its_way.result.set_result(Appended("orders", 0, 0, 1))
    for number in range(10):
        producers.add(f"new {number}", ProducerState(None))
    assert producers.find("first") is None
    assert len(producers) == 3
