"""The records of a transaction stream, as JSON: what a sink publishes for followers, on any transport.

    {"kind": "transaction", "group": "astha", "epoch": 7, "history": "9f...", "covers": [...], "previous": 90,
     "position": 95, "transaction": 1042, "committed_at": ..., "events": [{"operation": "INSERT", ...}]}

Every record says which position precedes it: all transactions after `previous` up to `position` are in the record, or
there are none. So a reader that has received everything up to R lacks something if, and only if, `previous` > R. This
holds for heartbeats too: nothing was to be sent between `previous`, the last transaction, and `position`.

Positions can be compared within one `history`, an id that the sink changes with each of its refreshes. `epoch` is that
of the lease under which the record was sent: records of an earlier leader may still arrive, and are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias, cast

import msgspec

from astha.errors import DecodeError
from astha.events.event import Commit, Event, Operation
from astha.events.transaction import Transaction
from registry.models import PUBLISHED, Row
from registry.position import Position

_NULL = msgspec.Raw(b"null")
_REFUSED = (msgspec.MsgspecError, UnicodeError, RecursionError)  # by msgspec: the last for JSON that is nested too deep
_Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # the ledger can't keep others
_DECODERS: Mapping[str, msgspec.json.Decoder[Row]] = {kind.table: msgspec.json.Decoder(kind) for kind in PUBLISHED}


class Sender(msgspec.Struct, frozen=True):
    """The daemon that sends, and the tables whose changes it sends."""

    group: str
    epoch: int
    history: str
    covers: tuple[str, ...]


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    group: str
    epoch: _Int64
    history: str
    covers: tuple[str, ...]
    previous: _Int64
    position: _Int64


class EventRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change. `before` is sent for an UPDATE only: an INSERT has none, a DELETE's `data` is the deleted row."""

    operation: Operation
    table: str
    data: msgspec.Raw
    before: msgspec.Raw = _NULL  # not `Raw | None`: msgspec decodes only null as that


class TransactionRecord(_Record, frozen=True, kw_only=True, tag="transaction", omit_defaults=True):
    """One commit with all its events of the covered tables. The changes of tables in `unlisted` are not listed: the
    commit was too large, and subscribers of these tables refresh.
    """

    transaction: _Int64
    committed_at: _Int64
    events: Sequence[EventRecord] = ()
    unlisted: tuple[str, ...] = ()


class GapRecord(_Record, frozen=True, kw_only=True, tag="gap"):
    """The sender has refreshed: what happened before is missing. A new history begins after `position`."""

    reason: str


class HeartbeatRecord(_Record, frozen=True, kw_only=True, tag="heartbeat"):
    """Everything up to `position` has been sent, and every snapshot taken from now on contains it."""


StreamRecord: TypeAlias = TransactionRecord | GapRecord | HeartbeatRecord

_decoder = msgspec.json.Decoder(StreamRecord)
_encoder = msgspec.json.Encoder()


def encode_transaction(sender: Sender, previous: Position, events: Sequence[Event[Row]], max_bytes: int) -> bytes:
    """Encodes the events of one commit, at least one. If the record were larger than `max_bytes`, it names only the
    tables, in `unlisted`.
    """
    records = [_record_of(event) for event in events]
    encoded = _encode_transaction(sender, previous, events[0].commit, events=records)
    return encoded if len(encoded) <= max_bytes else encode_unlisted(sender, previous, events)


def encode_event(event: Event[Row]) -> msgspec.Raw:
    """Encodes one event of a record, for `join_transaction`."""
    return msgspec.Raw(_encoder.encode(_record_of(event)))


def join_transaction(sender: Sender, previous: Position, commit: Commit, events: Sequence[msgspec.Raw]) -> bytes:
    """Encodes a record of events that are encoded already: a large one is built in steps, between other work."""
    return _encode_transaction(sender, previous, commit, events=cast("Sequence[EventRecord]", events))


def encode_unlisted(sender: Sender, previous: Position, events: Sequence[Event[Row]]) -> bytes:
    """Encodes a commit that is too large: the record has only the names of its tables."""
    tables = tuple(sorted({event.table for event in events}))
    return _encode_transaction(sender, previous, events[0].commit, unlisted=tables)


def encode_gap(sender: Sender, position: Position, reason: str) -> bytes:
    return _encoder.encode(GapRecord(**_head(sender, position, position), reason=reason))


def encode_heartbeat(sender: Sender, position: Position, previous: Position | None = None) -> bytes:
    """`previous` is the position of the last transaction that was sent, if the stream has come further since: so a
    sender that restarts at `position` repeats nothing and lacks nothing.
    """
    return _encoder.encode(HeartbeatRecord(**_head(sender, position if previous is None else previous, position)))


def decode_record(payload: bytes) -> StreamRecord:
    """Raises DecodeError. Rows are decoded later, by `transaction_of`."""
    try:
        record: StreamRecord = _decoder.decode(payload)
    except _REFUSED as error:
        raise DecodeError(f"not a record of a transaction stream: {error}") from error
    return record


def transaction_of(record: TransactionRecord, tables: frozenset[str], size_bytes: int) -> Transaction:
    """Returns the transaction with the events of these tables. Raises DecodeError if a row can't be decoded."""
    commit = Commit(record.transaction, Position(record.position), record.committed_at)
    events: list[Event[Row]] = []
    for event in record.events:
        if event.table in tables:
            events.append(_event_of(event, commit, len(events)))
    commit.count = len(events)
    unlisted = tables.intersection(record.unlisted)
    return Transaction(commit, events, frozenset(event.table for event in events) | unlisted, size_bytes, unlisted)


def _encode_transaction(
    sender: Sender,
    previous: Position,
    commit: Commit,
    events: Sequence[EventRecord] = (),
    unlisted: tuple[str, ...] = (),
) -> bytes:
    head = _head(sender, previous, commit.position)
    return _encoder.encode(
        TransactionRecord(
            **head,
            transaction=commit.transaction,
            committed_at=commit.committed_at,
            events=events,
            unlisted=unlisted,
        )
    )


def _head(sender: Sender, previous: Position, position: Position) -> dict[str, Any]:
    return {**msgspec.structs.asdict(sender), "previous": previous, "position": position}


def _record_of(event: Event[Row]) -> EventRecord:
    """Rows take the place of raw JSON: the encoder writes them as JSON objects."""
    data = cast("msgspec.Raw", event.data)
    if event.operation is not Operation.UPDATE:
        return EventRecord(event.operation, event.data.table, data)
    return EventRecord(event.operation, event.data.table, data, cast("msgspec.Raw", event.before))


def _event_of(record: EventRecord, commit: Commit, index: int) -> Event[Row]:
    decoder = _DECODERS[record.table]
    try:
        data = decoder.decode(record.data)
        before = None if bytes(record.before) == b"null" else decoder.decode(record.before)
    except _REFUSED as error:
        raise DecodeError(f"a row of {record.table} at position {commit.position} is malformed: {error}") from error
    if record.operation is Operation.DELETE:
        before = data
    elif (before is None) is (record.operation is Operation.UPDATE):
        raise DecodeError(f"{record.operation} of {record.table} at position {commit.position} has the wrong `before`")
    return Event(record.operation, data, before, commit, index)
