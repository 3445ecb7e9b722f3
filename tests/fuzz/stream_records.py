"""Mutated records of a transaction stream, as a follower may get them from a topic that others can write too.

Promised: only DecodeError comes out of the decoder, and only ConfigError out of a follower's `Continuity`; an unchanged
record gives the events that were encoded; what is taken is complete (`before` is as the operation wants it), fits the
ledger, and encodes to a record that reads the same.
"""

from __future__ import annotations

import random
from contextlib import suppress

from astha.errors import ConfigError, DecodeError
from astha.events import Commit, Event, Operation, Transaction
from astha.events.stream_records import (
    Sender,
    TransactionRecord,
    decode_record,
    encode_gap,
    encode_heartbeat,
    encode_transaction,
    transaction_of,
)
from astha.sources.continuity import Continuity
from registry.models import PUBLISHED, Row
from registry.position import Position
from tests.fixtures.rows import extreme_rows
from tests.fuzz.mutations import mutated

ROWS = extreme_rows()
TABLES = frozenset(kind.table for kind in PUBLISHED)
VALUES = [
    "null", "true", "-1", "0", "1.5", "1e400", "-0", "9223372036854775807", "9223372036854775808", "9" * 40,
    "9" * 5_000, '"transaction"', '"gap"', '"heartbeat"', '"INSERT"', '"UPDATE"', '"DELETE"', '"READ"', '"segments"',
    '"nowhere"',
    '"\\ud800"', '"\\ud83e\\udd8a"', '"a\\u0000b"', "[]", "{}", "[null]", "[" * 5_000 + "]" * 5_000,
    '{"x":' * 5_000 + "1" + "}" * 5_000, '"kind"', '"events"', '"before"', '"data"',
]  # fmt: skip
WORDS = [value.encode() for value in VALUES] + [
    b'"kind":"gap",', b'"before":null,', b'"unlisted":["segments"],', b'"events":[],', b'"x":',
    b"\\", b'"', b",", b":", b"{", b"}", b"[", b"]", b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf",
]  # fmt: skip


def play(rng: random.Random) -> None:
    sender = Sender("astha", rng.randrange(1, 9), "5f" * 16, tuple(sorted(TABLES)))
    previous = Position(rng.choice((0, 90, 2**63 - 2)))
    events = _events(rng, previous)
    payload = rng.choice(
        (
            encode_transaction(sender, previous, events, 1 << 20),
            encode_transaction(sender, previous, events, 1 << 20),
            encode_transaction(sender, previous, events, 100),
            encode_gap(sender, previous, "a new slot"),
            encode_heartbeat(sender, previous),
        )
    )
    if (taken := _take(payload)) and not taken.unlisted:
        assert taken.events == events
    follower = Continuity(TABLES)
    follower.take(encode_gap(sender, previous, "the stream begins"))
    for hostile in (mutated(rng, payload, WORDS), _replaced(rng, payload)):
        _check(_take(hostile), sender, previous)
        with suppress(ConfigError):  # a record that does not cover the tables
            follower.take(hostile)


def _events(rng: random.Random, previous: Position) -> list[Event[Row]]:
    commit = Commit(rng.randrange(-9, 2**32), Position(previous + 1), rng.randrange(2**50), 0)
    events: list[Event[Row]] = []
    for index in range(rng.randrange(1, 5)):
        row = rng.choice(ROWS)
        operation = rng.choice(list(Operation))
        before = None if operation is Operation.INSERT else row
        events.append(Event(operation, row, before, commit, index))
    commit.count = len(events)
    return events


def _replaced(rng: random.Random, payload: bytes) -> bytes:
    """Replaces one value of the record, so that it stays JSON more often than other mutations leave it."""
    colons = [at for at, byte in enumerate(payload) if byte == ord(":")]
    at = rng.choice(colons)
    end = min((found for mark in b",}" if (found := payload.find(mark, at)) >= 0), default=len(payload))
    return payload[: at + 1] + rng.choice(WORDS) + payload[end:]


def _take(payload: bytes) -> Transaction | None:
    try:
        record = decode_record(payload)
        if isinstance(record, TransactionRecord):
            return transaction_of(record, TABLES, len(payload))
    except DecodeError:
        pass
    return None


def _check(taken: Transaction | None, sender: Sender, previous: Position) -> None:
    if taken is None:
        return
    assert -(2**63) <= taken.position < 2**63
    if not taken.events:
        return
    for event in taken.events:
        assert (event.before is None) is (event.operation is Operation.INSERT)
        assert event.before is None or type(event.before) is type(event.data)
        assert event.operation is not Operation.DELETE or event.before == event.data
    again = _take(encode_transaction(sender, previous, taken.events, 1 << 30))
    assert again is not None
    assert again.events == taken.events
