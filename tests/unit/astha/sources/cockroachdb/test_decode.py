"""Changefeeds, decoded: from rows made by hand and from garbage. `test_recorded_streams.py` has a server's own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astha.errors import AsthaError, ConfigError, DecodeError
from astha.events import Event, Operation, Transaction
from astha.sources.cockroachdb.decode import LOOKBACK_NS, ChangefeedDecoder, Resolved
from astha.sources.cockroachdb.row_stream import FeedRow
from astha.sources.limits import TransactionLimits
from registry.json_text import JsonText
from registry.models import (
    PUBLISHED,
    ConsumerGroup,
    IcebergCommit,
    LakeTable,
    Partition,
    Row,
    Segment,
    TableFile,
    Topic,
)
from registry.position import Position
from tests.doubles.changefeed import change, mark, nothing
from tests.fixtures.rows import extreme_rows

EVERYTHING = frozenset(kind.table for kind in PUBLISHED)
NOW = 1_763_500_000_123_456_789
START = Position(NOW)
TOPIC = Topic("orders", 3, None, JsonText('{"a":1}'), 5, 6)


def group(name: str, value: int = 0) -> ConsumerGroup:
    return ConsumerGroup(name, 0, value)


def decoder(
    tables: frozenset[str] = EVERYTHING, limits: TransactionLimits | None = None, pending_limit: int | None = None
) -> ChangefeedDecoder:
    return ChangefeedDecoder(tables, limits or TransactionLimits(), START, pending_limit)


def feed(rows: Iterable[FeedRow], into: ChangefeedDecoder | None = None) -> list[Resolved]:
    into = into or decoder()
    found = [into.feed(table, key, value) for table, key, value in rows if value is not None]
    return [resolved for resolved in found if resolved is not None]


def transactions(rows: Iterable[FeedRow], into: ChangefeedDecoder | None = None) -> list[Transaction]:
    return [transaction for resolved in feed(rows, into) for transaction in resolved.transactions]


def described(found: Iterable[Event[Row]]) -> list[tuple[Operation, Row, Row | None]]:
    return [(event.operation, event.data, event.before) for event in found]


def test_a_transaction_over_several_tables() -> None:
    partitions = [Partition("orders", number, 0, 0, 1) for number in range(2)]
    (transaction,) = transactions(
        [change(NOW + 5, partitions[1]), change(NOW + 5, TOPIC), change(NOW + 5, partitions[0]), mark(NOW + 6)]
    )
    assert described(transaction.events) == [(Operation.INSERT, row, None) for row in (TOPIC, *partitions)]
    assert transaction.tables == {"topics", "partitions"}
    assert (transaction.position, transaction.commit.count, transaction.unlisted) == (NOW + 5, 3, frozenset())
    assert transaction.commit.committed_at == (NOW + 5) // 1000
    assert transaction.size_bytes > 0
    assert [event.index for event in transaction.events] == [0, 1, 2]


def test_updates_and_deletes_carry_the_row_before() -> None:
    changed = msgspec.structs.replace(TOPIC, partition_count=4)
    found = transactions([change(NOW + 1, changed, TOPIC), change(NOW + 2, None, changed), mark(NOW + 9)])
    assert [described(one.events) for one in found] == [
        [(Operation.UPDATE, changed, TOPIC)], [(Operation.DELETE, changed, changed)],
    ]  # fmt: skip


def test_nothing_is_delivered_before_its_mark() -> None:
    into = decoder()
    assert feed([change(NOW + 5, group("a")), change(NOW + 3, group("b")), mark(NOW + 3)], into) == [
        Resolved(Position(NOW + 2), [])
    ]
    (resolved,) = feed([mark(NOW + 4)], into)
    assert (resolved.position, [one.position for one in resolved.transactions]) == (NOW + 3, [NOW + 3])
    (resolved,) = feed([mark(NOW + 5, 2**31 - 1)], into)
    assert (resolved.position, [one.position for one in resolved.transactions]) == (NOW + 5, [NOW + 5])


def test_transactions_are_delivered_in_the_order_of_their_commits() -> None:
    walls = list(range(NOW + 1, NOW + 50))
    rows = [change(wall, group(f"g{wall}")) for wall in walls]
    random.Random(1).shuffle(rows)
    assert [one.position for one in transactions([*rows, mark(NOW + 60)])] == walls


def test_commits_of_one_nanosecond_have_positions_one_after_the_other() -> None:
    one, two = group("a", 1), group("a", 2)
    rows = [
        change(NOW + 2, group("next")), change(NOW + 1, two, one, logical=7), change(NOW + 1, one, logical=3),
        change(NOW + 9, group("later")),
    ]  # fmt: skip
    found = transactions([*rows, mark(NOW + 10)])
    assert [described(each.events)[0][1] for each in found] == [one, two, group("next"), group("later")]
    assert [each.position - NOW for each in found] == [1, 2, 3, 9]
    assert [each.commit.transaction - NOW for each in found] == [1, 1, 2, 9]


def test_a_mark_in_the_middle_does_not_change_positions() -> None:
    into = decoder()
    (first,) = feed([*(change(NOW + 1, group(f"g{n}"), logical=n) for n in range(5)), mark(NOW + 2)], into)
    assert [each.position - NOW for each in first.transactions] == [1, 2, 3, 4, 5]
    assert first.position == NOW + 5
    (second,) = feed([change(NOW + 3, group("next")), mark(NOW + 4)], into)
    assert [each.position - NOW for each in second.transactions] == [6]
    (third,) = feed([mark(NOW + 5)], into)
    assert third.position == NOW + 6


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 4), st.booleans()), unique_by=lambda time: time[:2], max_size=12
    ),
    st.integers(0, 12),
)
def test_positions_are_the_same_wherever_reading_begins(commits: list[tuple[int, int, bool]], after: int) -> None:
    """Whether or not their tables have subscribers, and even between commits of one nanosecond."""
    rows = [
        change(NOW + wall, group(f"{wall}.{logical}") if own else TOPIC, logical=logical)
        for wall, logical, own in commits
    ]
    tables = frozenset({"consumer_groups"})
    whole = transactions([*rows, mark(NOW + 50)], decoder(tables))
    everything = transactions([*rows, mark(NOW + 50)], decoder())
    later = ChangefeedDecoder(tables, TransactionLimits(), Position(NOW + after))
    resumed = transactions([*rows, mark(NOW + 50)], later)
    assert resumed == [one for one in whole if one.position > NOW + after]
    assert {one.position for one in whole} <= {one.position for one in everything}
    assert len(everything) == len(commits)


def test_repeated_changes_are_dropped() -> None:
    into = decoder()
    rows = [change(NOW + 1, group("a")), change(NOW + 2, group("b"))]
    assert len(transactions([*rows, *rows, mark(NOW + 2), *rows], into)) == 1
    (second,) = transactions([change(NOW + 2, group("b")), mark(NOW + 3), *rows, mark(NOW + 3), mark(NOW + 2)], into)
    assert described(second.events) == [(Operation.INSERT, group("b"), None)]
    assert into.repeated == 7
    assert transactions([mark(NOW + 9)], into) == []


def test_changes_up_to_the_position_are_repetitions() -> None:
    assert transactions([change(NOW, group("before")), mark(NOW + 1)]) == []
    into = decoder()
    assert transactions([change(NOW - LOOKBACK_NS, group("before the cursor")), mark(NOW + 1)], into) == []
    assert into.repeated == 1


def test_a_row_that_was_inserted_and_deleted_at_once_is_no_change() -> None:
    assert feed([nothing(NOW + 1, group("a")), mark(NOW + 2)]) == [Resolved(Position(NOW + 1), [])]


def test_the_order_inside_a_transaction_does_not_depend_on_that_of_its_rows() -> None:
    lake = LakeTable(7, "d", "t", "", 0, 0, 0, 0, "active", 0, 0)
    marker = IcebergCommit(1, 7, None, None, "metadata", None, 0, 0, 0, 0, 0, 0, "c", 0, 0)
    files = [TableFile(n, 7, f"f{n}", "f", 0, "", "", 0, None, False, 1, None, "insert", None, 0, 0) for n in (1, 2)]
    segments = [Segment(9 - n, "t", 0, n, n, 1, 1, "b", "k", 0, 0) for n in range(3)]
    rows = [
        change(NOW + 1, lake), change(NOW + 1, marker), change(NOW + 1, None, files[0]),
        *(change(NOW + 1, segment) for segment in segments), change(NOW + 1, files[1]),
    ]  # fmt: skip
    wanted = [lake, marker, files[0], *segments, files[1]]
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        (transaction,) = transactions([*rows, mark(NOW + 2)])
        assert [event.data for event in transaction.events] == wanted
    (updated,) = transactions([change(NOW + 1, lake, lake), change(NOW + 1, marker), mark(NOW + 2)])
    assert [event.data for event in updated.events] == [marker, lake]


def test_rows_of_every_table() -> None:
    wanted = extreme_rows()
    (transaction,) = transactions([*(change(NOW + 1, row) for row in wanted), mark(NOW + 2)])
    assert {str(event.data) for event in transaction.events} == {str(row) for row in wanted}


def test_columns_that_the_model_does_not_have_are_ignored() -> None:
    table, key, value = change(NOW + 1, group("a"))
    assert value is not None
    more = msgspec.json.decode(value)
    more["after"] |= {"added_later": 1.5, "crdb_internal_shard": 3}
    (transaction,) = transactions([(table, key, msgspec.json.encode(more)), mark(NOW + 2)])
    assert transaction.events[0].data == group("a")


def test_tables_without_a_subscriber_only_move_the_position() -> None:
    into = decoder(frozenset({"topics"}))
    assert feed([change(NOW + 1, group("a")), mark(NOW + 2)], into) == [Resolved(Position(NOW + 1), [])]


def test_a_transaction_beyond_the_limits_only_names_its_tables() -> None:
    into = decoder(limits=TransactionLimits(events=10))
    rows = [change(NOW + 1, group(f"g{n}")) for n in range(11)]
    large, small = transactions([change(NOW + 1, TOPIC), *rows, change(NOW + 2, TOPIC), mark(NOW + 3)], into)
    assert (large.events, large.commit.count) == ([], 0)
    assert large.unlisted == {"topics", "consumer_groups"}
    assert (len(small.events), small.unlisted) == (1, frozenset())


def test_limits_count_bytes_too() -> None:
    into = decoder(limits=TransactionLimits(size_bytes=2_000))
    large = msgspec.structs.replace(TOPIC, config=JsonText('{"k":"' + "x" * 2_000 + '"}'))
    (transaction,) = transactions([change(NOW + 1, large), mark(NOW + 2)], into)
    assert transaction.events == []
    assert transaction.unlisted == {"topics"}


def test_too_many_changes_without_a_mark_make_the_subscribers_of_their_tables_refresh() -> None:
    """After a long absence the changes come in no order and without a mark: what was lost is not delivered in part."""
    into = decoder(limits=TransactionLimits(size_bytes=100_000), pending_limit=5_000)
    late = [change(NOW + 100 - n, group(f"g{n}", n)) for n in range(40)]
    assert feed([*late, mark(NOW + 50), change(NOW + 70, TOPIC)], into) == []
    assert feed([change(NOW + 200, group("after")), mark(NOW + 99)], into) == []
    (resolved,) = feed([mark(NOW + 150)], into)
    lost = resolved.transactions[0]
    assert lost.events == []
    assert lost.tables == lost.unlisted == {"topics", "consumer_groups"}
    assert NOW + 70 <= lost.position <= NOW + 100
    assert all(one.position > lost.position for one in resolved.transactions[1:])
    (after,) = transactions([mark(NOW + 300)], into)
    assert described(after.events) == [(Operation.INSERT, group("after"), None)]


def test_a_change_that_can_not_be_decoded_does_not_stop_the_stream() -> None:
    into = decoder()
    bad = b'{"after":{"group_id":1},"before":null,"mvcc_timestamp":"%d.0000000000","updated":"1.0"}' % (NOW + 1)
    (transaction,) = transactions([change(NOW + 1, TOPIC), (b"consumer_groups", b"[1]", bad), mark(NOW + 2)], into)
    assert described(transaction.events) == [(Operation.INSERT, TOPIC, None)]
    assert transaction.unlisted == {"consumer_groups"}
    assert "consumer_groups" in str(into.decode_error)


@pytest.mark.parametrize("bad", [b"", b"{}", b'{"mvcc_timestamp":"soon"}', b'{"resolved":1}', b"\xff"])
def test_a_row_without_a_readable_time_stops_it(bad: bytes) -> None:
    with pytest.raises(DecodeError):
        decoder().feed(b"topics", b"[1]", bad)
    with pytest.raises(DecodeError, match="resolved mark"):
        decoder().feed(None, None, bad)


def test_unpublished_tables_are_refused() -> None:
    with pytest.raises(ConfigError, match="ledger"):
        decoder(frozenset({"ledger"}))


@settings(max_examples=200)
@given(st.binary(max_size=80), st.sampled_from([b"topics", b"segments", None, b"other"]))
def test_garbage_raises_only_the_projects_errors(value: bytes, table: bytes | None) -> None:
    with contextlib.suppress(AsthaError):
        decoder().feed(table, b"[1]", value)


CHANGES = st.lists(st.tuples(st.integers(1, 6), st.sampled_from("abc")), unique=True, max_size=12)


@given(CHANGES, st.randoms(), st.integers(0, 7))
def test_any_order_and_any_repetition_give_the_same_stream(
    changes: list[tuple[int, str]], chance: random.Random, middle: int
) -> None:
    """A mark in the middle comes after every change up to it, as the server promises."""
    rows = [(wall, change(NOW + wall, group(name, wall))) for wall, name in changes]
    again = rows * 2
    chance.shuffle(again)
    first = [row for wall, row in again if wall <= middle]
    early = [row for wall, row in again if wall > middle and chance.random() < 0.5]
    found = transactions([*early, *first, mark(NOW + middle + 1), *(row for _, row in again), mark(NOW + 10)])
    plain = transactions([*(row for _, row in rows), mark(NOW + 10)])
    assert [(one.position, described(one.events)) for one in found] == [
        (one.position, described(one.events)) for one in plain
    ]
