"""What a server sent: `recorded_stream.jsonl` has the rows of two changefeeds with the same cursor, in turn.

Recorded from a single node of CockroachDB built from the public source of January 2023 (about 23.1). `consumer_groups`
had columns that the registry does not have: bytes, a float, a decimal and a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from astha.events import Operation, Transaction
from astha.sources.cockroachdb.decode import ChangefeedDecoder
from astha.sources.limits import TransactionLimits
from registry.json_text import JsonText
from registry.models import ConsumerGroup, Partition, Row, Segment, Topic
from registry.position import Position
from tests.fixtures.rows import MOST, WORDS

STREAM = Path(__file__).with_name("recorded_stream.jsonl")
TABLES = frozenset({"topics", "partitions", "consumer_groups", "segments", "tables"})

TOPIC = Topic("orders", 2, None, JsonText('{"a":1}'), MOST, 0)
LARGER = Topic("orders", 3, 86_400_000, JsonText('{"a":1}'), MOST, 0)
FIRST, SECOND, THIRD = (Partition("orders", n, 2**53 + 1 if n == 0 else 0, 0, 1) for n in range(3))
READERS, READ, AGAIN = (ConsumerGroup("readers", *times) for times in ((-MOST - 1, 1), (-MOST - 1, 2), (7, 7)))
SEGMENT = Segment(MOST - 1, "orders", 0, 0, 9, 10, 100, "b", "k", 0, 5)
INSERT, UPDATE, DELETE = Operation.INSERT, Operation.UPDATE, Operation.DELETE

WANTED: list[list[tuple[Operation, Row, Row | None]]] = [
    [(INSERT, TOPIC, None), (INSERT, FIRST, None), (INSERT, SECOND, None)],
    [(INSERT, READERS, None)],
    [(INSERT, ConsumerGroup(WORDS, 0, 1), None)],
    [(UPDATE, LARGER, TOPIC), (INSERT, THIRD, None)],
    [(INSERT, SEGMENT, None)],
    [(UPDATE, READ, READERS)],
    [(UPDATE, AGAIN, READ)],
    [(DELETE, AGAIN, AGAIN), (DELETE, SEGMENT, SEGMENT), (DELETE, THIRD, THIRD)],
]


@cache
def recorded() -> tuple[Position, list[list[str | None]], list[list[str | None]]]:
    """Returns the cursor, and the rows before and after the reconnect."""
    head, *rows = [json.loads(line) for line in STREAM.read_text().split("\n") if line]
    (middle,) = (number for number, row in enumerate(rows) if isinstance(row, dict))
    return Position(head["cursor"]), rows[:middle], rows[middle + 1 :]


def decoder(after: Position, limits: TransactionLimits | None = None) -> ChangefeedDecoder:
    return ChangefeedDecoder(TABLES, limits or TransactionLimits(), after)


def decoded(into: ChangefeedDecoder, rows: list[list[str | None]]) -> Iterator[Transaction]:
    for row in rows:
        table, key, value = (None if text is None else text.encode() for text in row)
        assert value is not None
        resolved = into.feed(table, key, value)
        if resolved is not None:
            yield from resolved.transactions


def described(transactions: list[Transaction]) -> list[list[tuple[Operation, Row, Row | None]]]:
    return [[(event.operation, event.data, event.before) for event in one.events] for one in transactions]


def test_whole_transactions_in_the_order_of_their_commits() -> None:
    cursor, rows, _ = recorded()
    found = list(decoded(decoder(cursor), rows))
    assert described(found) == WANTED
    assert all(one.position < other.position for one, other in pairwise(found))
    assert cursor < found[0].position
    assert [one.unlisted for one in found] == [frozenset()] * len(found)


def test_the_rows_did_not_come_in_that_order() -> None:
    """Otherwise the recording would not show that the decoder sorts them."""
    for rows in recorded()[1:]:
        times = [json.loads(str(value))["mvcc_timestamp"] for table, _, value in rows if table is not None]
        assert times != sorted(times)


def test_a_reconnect_from_the_cursor_repeats_the_same_transactions() -> None:
    cursor, first, second = recorded()
    before, after = list(decoded(decoder(cursor), first)), list(decoded(decoder(cursor), second))
    assert after[:-1] == before
    assert described(after[-1:]) == [[(INSERT, Topic("later", 1, None, JsonText("{}"), 0, 0), None)]]


def test_repetitions_on_one_connection_are_recognised() -> None:
    cursor, first, second = recorded()
    into = decoder(cursor)
    assert len(list(decoded(into, first))) == len(WANTED)
    (later,) = decoded(into, second)
    assert [event.data.key for event in later.events] == [("name",)]
    assert into.repeated >= sum(len(events) for events in WANTED)


def test_a_resumed_stream_begins_after_its_position() -> None:
    cursor, first, second = recorded()
    before = list(decoded(decoder(cursor), first))
    resumed = list(decoded(decoder(before[3].position), second))
    assert resumed[:-1] == before[4:]
