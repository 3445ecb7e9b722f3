from __future__ import annotations

import json

import msgspec
import pytest

from astha.errors import DecodeError
from astha.events import Commit, Event, Operation
from astha.events.stream_records import (
    GapRecord,
    HeartbeatRecord,
    Sender,
    TransactionRecord,
    decode_record,
    encode_gap,
    encode_heartbeat,
    encode_transaction,
    transaction_of,
)
from registry.json_text import JsonText
from registry.models import PUBLISHED, Row, Topic
from registry.position import Position
from tests.fixtures.rows import extreme_rows

EVERYTHING = frozenset(kind.table for kind in PUBLISHED)
SENDER = Sender("astha", 7, "h", tuple(sorted(EVERYTHING)))
UNLIMITED = 1 << 30


def events_of(*changes: tuple[Operation, Row, Row | None], position: int = 95) -> list[Event[Row]]:
    commit = Commit(1042, Position(position), 5, len(changes))
    return [Event(operation, data, before, commit, index) for index, (operation, data, before) in enumerate(changes)]


def encoded(events: list[Event[Row]], max_bytes: int = UNLIMITED) -> bytes:
    return encode_transaction(SENDER, Position(90), events, max_bytes)


def decoded(payload: bytes) -> TransactionRecord:
    record = decode_record(payload)
    assert isinstance(record, TransactionRecord)
    return record


@pytest.mark.parametrize("operation", list(Operation))
def test_rows_of_every_table_survive(operation: Operation) -> None:
    rows = extreme_rows()
    events = events_of(*[(operation, row, None if operation is Operation.INSERT else row) for row in rows])
    transaction = transaction_of(decoded(encoded(events)), EVERYTHING, 1)
    assert transaction.events == events
    assert transaction.commit == events[0].commit
    assert transaction.unlisted == frozenset()
    for found, row in zip(transaction.events, rows, strict=True):
        assert type(found.data) is type(row)
        values = zip(msgspec.structs.astuple(found.data), msgspec.structs.astuple(row), strict=True)
        assert all(type(one) is type(other) for one, other in values)
    assert {type(row) for row in rows} == set(PUBLISHED)


def test_only_subscribed_tables_are_decoded_and_counted() -> None:
    events = events_of(*[(Operation.INSERT, row, None) for row in extreme_rows()])
    transaction = transaction_of(decoded(encoded(events)), frozenset({"topics"}), 1)
    assert [event.data for event in transaction.events] == [row for row in extreme_rows() if isinstance(row, Topic)]
    assert [event.index for event in transaction.events] == [0, 1]
    assert transaction.commit.count == 2
    assert transaction.tables == {"topics"}


def test_a_record_beyond_the_limit_only_names_its_tables() -> None:
    events = events_of(*[(Operation.INSERT, row, None) for row in extreme_rows()])
    size = len(encoded(events))
    assert decoded(encoded(events, size)).unlisted == ()
    payload = encoded(events, size - 1)
    assert len(payload) < 2_000
    transaction = transaction_of(decoded(payload), frozenset({"topics", "segments"}), 1)
    assert transaction.events == []
    assert transaction.unlisted == transaction.tables == {"topics", "segments"}
    assert transaction.position == 95


def test_a_gap_and_a_heartbeat() -> None:
    gap, beat = (
        decode_record(encode_gap(SENDER, Position(3), "lost")),
        decode_record(encode_heartbeat(SENDER, Position(3))),
    )
    assert isinstance(gap, GapRecord)
    assert (gap.previous, gap.position, gap.reason, gap.history, gap.epoch) == (3, 3, "lost", "h", 7)
    assert isinstance(beat, HeartbeatRecord)
    assert (beat.previous, beat.position) == (3, 3)
    ahead = decode_record(encode_heartbeat(SENDER, Position(9), Position(3)))
    assert (ahead.previous, ahead.position) == (3, 9)


def test_columns_of_a_newer_sender_are_ignored() -> None:
    topic = extreme_rows()[0]
    payload = json.loads(encoded(events_of((Operation.UPDATE, topic, topic))))
    payload["events"][0]["data"]["later"] = payload["events"][0]["before"]["later"] = [1]
    payload["later"] = 1
    (event,) = transaction_of(decoded(json.dumps(payload).encode()), EVERYTHING, 1).events
    assert (event.data, event.before) == (topic, topic)


@pytest.mark.parametrize(
    "change",
    [
        {"data": {}},  # an older sender lacks columns
        {"data": None},
        {"data": {"name": 1}},
        {"operation": "UPDATE"},
        {"before": {"name": "t"}},
    ],
)
def test_a_row_that_does_not_fit_is_an_error(change: dict[str, object]) -> None:
    payload = json.loads(encoded(events_of((Operation.INSERT, extreme_rows()[0], None))))
    payload["events"][0].update(change)
    with pytest.raises(DecodeError, match="topics at position 95"):
        transaction_of(decoded(json.dumps(payload).encode()), EVERYTHING, 1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"{}",
        b'{"kind":"other"}',
        b'{"kind":"heartbeat","group":"g","epoch":"1"}',
        b"\x00" * 99,
    ],
)
def test_what_is_no_record_is_an_error(payload: bytes) -> None:
    with pytest.raises(DecodeError, match="not a record"):
        decode_record(payload)


def test_an_event_of_a_table_that_is_not_known_here_is_ignored() -> None:
    payload = json.loads(encoded(events_of((Operation.INSERT, extreme_rows()[0], None))))
    payload["events"].insert(0, {"operation": "INSERT", "table": "tables_of_tomorrow", "data": {"a": [1]}})
    assert len(transaction_of(decoded(json.dumps(payload).encode()), EVERYTHING, 1).events) == 1


@pytest.mark.parametrize("field", ["previous", "position", "epoch"])
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**40])
def test_a_number_that_the_ledger_cannot_keep_is_malformed(field: str, number: int) -> None:
    payload = json.dumps({**json.loads(encode_heartbeat(SENDER, Position(95))), field: number})
    with pytest.raises(DecodeError, match=field):
        decode_record(payload.encode())


def test_json_that_is_nested_too_deep_is_malformed() -> None:
    nested = b"[" * 5_000 + b"]" * 5_000
    record = encode_heartbeat(SENDER, Position(95))
    with pytest.raises(DecodeError, match="recursion"):
        decode_record(record[:-1] + b',"unknown":' + nested + b"}")
    row = Topic("orders", 1, None, JsonText("{}"), 0, 0)
    payload = encoded(events_of((Operation.INSERT, row, None)))
    with pytest.raises(DecodeError, match="recursion"):
        transaction_of(decoded(payload.replace(b'"name":', b'"unknown":' + nested + b',"name":')), EVERYTHING, 1)
