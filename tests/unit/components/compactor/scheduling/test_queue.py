from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from components.compactor.scheduling.queue import DOUBLING_MS, PartitionQueue

A, B, C = (1, "a"), (1, "b"), (2, "")


def keys(queue: PartitionQueue) -> list[tuple[int, str]]:
    return [entry.key for entry in queue]


def test_the_highest_score_comes_first() -> None:
    queue = PartitionQueue()
    for key, score in ((A, 1.0), (B, 4.0), (C, 2.0)):
        queue.put(key, score, 0)
    assert keys(queue) == [B, C, A]
    queue.put(A, 8.0, 0)
    assert keys(queue) == [A, B, C]
    queue.drop(A)
    queue.drop(A)
    assert keys(queue) == [B, C]
    assert len(queue) == 2
    assert A not in queue


def test_waiting_counts() -> None:
    queue = PartitionQueue()
    queue.put(A, 1.0, 0)
    queue.put(B, 4.0, 2 * DOUBLING_MS - 1)
    assert keys(queue) == [B, A]
    queue.put(C, 3.9, 2 * DOUBLING_MS)
    assert keys(queue) == [B, A, C], "twice doubled while it waited"
    queue.put(A, 1.0, 5 * DOUBLING_MS)
    assert keys(queue) == [B, A, C], "its place in time stays"


def test_a_held_partition_is_not_next() -> None:
    queue = PartitionQueue()
    queue.put(A, 9.0, 0, until_ms=100)
    queue.put(B, 1.0, 0)
    queue.put(C, 5.0, 0, until_ms=50)
    first = queue.first()
    assert first is not None
    assert first.key == B
    assert (queue.held, queue.next_release_ms(), keys(queue)) == (2, 50, [B, C, A])
    assert queue.release(49, 2) == []
    assert queue.release(50, 2) == [C]
    assert queue.release(100, 2) == [A]
    assert keys(queue) == [A, C, B]
    assert queue.next_release_ms() is None


def test_partitions_are_released_some_at_a_time() -> None:
    queue = PartitionQueue()
    for number in range(5):
        queue.put((1, str(number)), 1.0, 0, until_ms=10 + number)
    assert [path for _, path in queue.release(100, 3)] == ["0", "1", "2"]
    assert queue.next_release_ms() == 13
    assert [path for _, path in queue.release(100, 3)] == ["3", "4"]


steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "drop", "release"]), st.integers(0, 6), st.floats(0, 1e6),
        st.integers(0, 10**7), st.one_of(st.none(), st.integers(0, 10**7)),
    )
)  # fmt: skip


@settings(deadline=None)
@given(steps)
def test_order_is_that_of_a_sort(drawn: list[tuple[str, int, float, int, int | None]]) -> None:
    queue = PartitionQueue()
    entries: dict[tuple[int, str], tuple[float, int, int | None]] = {}
    for what, number, score, at, until in drawn:
        key = (number % 3, str(number))
        if what == "put":
            since = entries[key][1] if key in entries else at
            entries[key] = (score, since, until)
            queue.put(key, score, at, until, size_bytes=number)
        elif what == "drop":
            entries.pop(key, None)
            queue.drop(key)
        else:
            due = {k for k, (_, _, until_ms) in entries.items() if until_ms is not None and until_ms <= at}
            assert set(queue.release(at, 100)) == due
            entries |= {k: (entries[k][0], entries[k][1], None) for k in due}
    assert queue.size_bytes == sum(int(path) for _, path in entries)
    found = {entry.key: (entry.score, entry.since_ms, entry.until_ms) for entry in queue}
    assert found == entries
    ready = [entry for entry in queue if entry.until_ms is None]
    assert ready == sorted(ready, key=lambda entry: (entry.rank, entry.key))
    first = queue.first()
    assert first == (ready[0] if ready else None)
