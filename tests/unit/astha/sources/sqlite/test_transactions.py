from __future__ import annotations

from typing import ClassVar

import msgspec

from astha.events import Operation
from astha.sources.limits import TransactionLimits
from astha.sources.sqlite.changelog import Header, RowChange
from astha.sources.sqlite.transactions import Assembler
from registry.models import ConsumerGroup, Row

TABLES = frozenset({"consumer_groups", "topics"})


class Inserted(RowChange, array_like=True, frozen=True, gc=False):
    operation: ClassVar[Operation] = Operation.INSERT
    table: ClassVar[str] = "consumer_groups"


def change(sequence: int, number: int | None, size: int = 10) -> RowChange:
    return Inserted(sequence, number, sequence * 10, size, None, ConsumerGroup(str(sequence), 0, 0))


def header(sequence: int, number: int | None, table: str = "agents") -> Header:
    return Header(sequence, number, sequence * 10, table)


def assembler(**limits: int) -> Assembler:
    return Assembler(TABLES, TransactionLimits(**limits))


def test_a_transaction_ends_where_the_next_begins() -> None:
    one = assembler()
    assert one.feed([change(1, 7), change(2, 7)]) == []
    (done,) = one.feed([change(3, 8)])
    assert (done.commit.transaction, done.position, done.commit.committed_at) == (7, 2, 20_000)
    assert [event.index for event in done.events] == [0, 1]
    assert done.events[-1].last
    assert one.reached == 2


def test_the_end_of_the_log_ends_it_too() -> None:
    one = assembler()
    one.feed([change(1, 7)])
    (done,) = one.finish()
    assert done.position == one.reached == 1
    assert one.finish() == []


def test_rows_without_a_number_that_are_found_together_are_one() -> None:
    one = assembler()
    done = one.feed([change(1, None), change(2, None), change(3, 7), change(4, None)])
    done += one.finish()
    assert [item.commit.transaction for item in done] == [-1, 7, -4]
    assert [len(item.events) for item in done] == [2, 1, 1]


def test_a_transaction_may_come_in_pieces() -> None:
    one = assembler()
    for sequence in range(1, 50):
        assert one.feed([change(sequence, None)]) == []
    (done,) = one.finish()
    assert len(done.events) == done.commit.count == 49


def test_what_nobody_wants_only_moves_the_position() -> None:
    one = assembler()
    assert one.feed([header(1, 5), header(2, 6)]) == []
    assert one.reached == 1
    assert one.finish() == []
    assert one.reached == 2


def test_the_position_counts_rows_that_nobody_wants() -> None:
    one = assembler()
    one.feed([header(1, 5), change(2, 5), header(3, 5)])
    (done,) = one.finish()
    assert done.position == 3
    assert done.tables == {"consumer_groups"}
    assert [event.index for event in done.events] == [0]


def test_a_row_without_images_makes_its_table_unlisted() -> None:
    one = assembler()
    one.feed([change(1, 5), header(2, 5, "topics")])
    (done,) = one.finish()
    assert done.unlisted == {"topics"}
    assert done.tables == TABLES
    assert len(done.events) == 1


def test_beyond_the_limits_nothing_is_held() -> None:
    one = assembler(events=3)
    one.feed([change(sequence, 5) for sequence in range(1, 4)])
    assert len(held(one)) == 3
    one.feed([change(4, 5)])
    assert one.oversized
    assert one.continues(header(5, 5))
    assert not one.continues(header(5, 6))
    for sequence in range(5, 1_000):
        one.feed([change(sequence, 5)])
        assert held(one) == []
    (done,) = one.feed([change(1_000, 6)])
    assert (done.events, done.commit.count, done.position) == ([], 0, 999)
    assert done.unlisted == {"consumer_groups"}
    (after,) = one.finish()
    assert (len(after.events), after.unlisted) == (1, frozenset())


def test_bytes_are_limited_too() -> None:
    one = assembler(size_bytes=100)
    one.feed([change(1, 5, size=60), change(2, 5, size=60)])
    assert one.oversized


def test_reset_forgets_the_open_transaction() -> None:
    one = assembler()
    one.feed([change(1, 5)])
    one.reset()
    assert one.finish() == []
    one.feed([change(9, 5)])
    (done,) = one.finish()
    assert [event.data for event in done.events] == [ConsumerGroup("9", 0, 0)]


def held(one: Assembler) -> list[Row]:
    return [event.data for event in one._events]


def test_events_share_their_commit() -> None:
    one = assembler()
    one.feed([change(1, 5), change(2, 5)])
    (done,) = one.finish()
    assert all(event.commit is done.commit for event in done.events)
    assert msgspec.structs.asdict(done.commit)["count"] == 2
