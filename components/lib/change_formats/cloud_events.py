"""CloudEvents 1.0 with data in JSON: structured (attributes in the value) and binary (attributes in headers).

Attributes that are integers of 64 bits are strings: an Integer of CloudEvents has 32 bits.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from urllib.parse import quote

import msgspec

from astha.events import Commit, Event, Operation
from components.lib.change_formats.attribute_text import attribute_text
from components.lib.change_formats.contract import Binding, Message, Origin
from components.lib.change_formats.keys import KEY_ENCODERS
from components.lib.change_formats.nested_rows import NESTED_ROW_ENCODERS
from registry.models import PUBLISHED, Row
from registry.position import Position

DATA_CONTENT_TYPE = "application/json"
STRUCTURED_CONTENT_TYPE = "application/cloudevents+json; charset=UTF-8"

Header = tuple[str, bytes]

_EPOCH = datetime(1970, 1, 1)  # naive, so that its text has no offset
_encode = msgspec.json.Encoder().encode
_ATTRIBUTES = {
    name: name.encode()
    for name in (
        "id", "source", "type", "subject", "time", "partitionkey",
        "position", "transaction", "index", "epoch", "snapshot",
    )
}  # fmt: skip


class _CommitHeaders(msgspec.Struct, frozen=True):
    """The attributes of one commit, in binary mode. `id` lacks the index of the event."""

    commit: Commit
    origin: Origin
    id: bytes
    source: Header
    time: Header
    rest: tuple[Header, ...]


class _CommitJson(msgspec.Struct, frozen=True):
    """The attributes of one commit, in structured mode: the parts around those of an event."""

    commit: Commit
    origin: Origin
    head: bytes  # up to the index in `id`
    source: bytes  # up to the type
    rest: bytes  # after the subject, up to the index


class BinaryCloudEvents:
    """Attributes are headers ``ce_NAME`` on Kafka, and user properties NAME on MQTT."""

    content_type = DATA_CONTENT_TYPE

    def __init__(self, binding: Binding) -> None:
        self._prefix = "ce_" if binding == "kafka" else ""
        self._specversion = (f"{self._prefix}specversion", b"1.0")
        self._content_type: tuple[Header, ...] = _content_type(DATA_CONTENT_TYPE, binding)
        self._names = {name: f"{self._prefix}{name}" for name in _ATTRIBUTES}
        self._type, self._subject, self._id, self._partitionkey, self._index = (
            self._names[name] for name in ("type", "subject", "id", "partitionkey", "index")
        )
        self._commit: _CommitHeaders | None = None

    def change(self, event: Event[Row], origin: Origin, now_ms: int) -> Message:
        kind, index = type(event.data), b"%d" % event.index
        commit = self._commit
        if commit is None or commit.commit is not event.commit or commit.origin is not origin:
            commit = self._commit = self._commit_headers(event.commit, origin)
        key = KEY_ENCODERS[kind](event.data)
        subject = attribute_text(key)
        headers = (
            self._specversion,
            (self._id, commit.id + index),
            commit.source,
            (self._type, _TYPES[kind, event.operation.value]),
            (self._subject, subject),
            commit.time,
            (self._partitionkey, subject),
            (self._index, index),
            *commit.rest,
        )
        return Message(_data(event), headers, key)

    def snapshot_row(self, row: Row, position: Position, origin: Origin, now_ms: int, last: bool) -> Message:
        key = KEY_ENCODERS[type(row)](row)
        named = _snapshot_attributes(row, attribute_text(key), position, origin, now_ms, last)
        headers = (self._specversion, *self._headers(named), *self._content_type)
        return Message(_snapshot_data(row), headers, key)

    def key(self, row: Row, origin: Origin) -> bytes:
        return KEY_ENCODERS[type(row)](row)

    def tombstone(self, key: bytes) -> Message:
        return Message(None, (), key)

    def _commit_headers(self, commit: Commit, origin: Origin) -> _CommitHeaders:
        source, time, *rest = self._headers(_commit_attributes(commit, origin))
        return _CommitHeaders(commit, origin, _id(commit), source, time, (*rest, *self._content_type))

    def _headers(self, attributes: dict[str, bytes]) -> tuple[Header, ...]:
        names = self._names
        return tuple([(names[name], value) for name, value in attributes.items()])


class StructuredCloudEvents:
    """Attributes and data are one JSON object."""

    content_type = STRUCTURED_CONTENT_TYPE

    def __init__(self, binding: Binding) -> None:
        self._headers = _content_type(STRUCTURED_CONTENT_TYPE, binding)
        self._commit: _CommitJson | None = None

    def change(self, event: Event[Row], origin: Origin, now_ms: int) -> Message:
        kind, index, operation = type(event.data), event.index, event.operation.value
        commit = self._commit
        if commit is None or commit.commit is not event.commit or commit.origin is not origin:
            commit = self._commit = _commit_json(event.commit, origin)
        key = KEY_ENCODERS[kind](event.data)
        subject = _encode(attribute_text(key).decode())
        value = b'%b%d%b%b","subject":%b,"partitionkey":%b%b%d","data":%b}' % (
            commit.head, index, commit.source, _TYPES[kind, operation], subject, subject, commit.rest, index,
            _data(event),
        )  # fmt: skip
        return Message(value, self._headers, key)

    def snapshot_row(self, row: Row, position: Position, origin: Origin, now_ms: int, last: bool) -> Message:
        key = KEY_ENCODERS[type(row)](row)
        named = _snapshot_attributes(row, attribute_text(key), position, origin, now_ms, last)
        attributes = b",".join(
            [b'"%b":%b' % (_ATTRIBUTES[name], _encode(text.decode())) for name, text in named.items()]
        )
        value = b'{"specversion":"1.0",%b,"datacontenttype":"application/json","data":%b}' % (
            attributes, _snapshot_data(row),
        )  # fmt: skip
        return Message(value, self._headers, key)

    def key(self, row: Row, origin: Origin) -> bytes:
        return KEY_ENCODERS[type(row)](row)

    def tombstone(self, key: bytes) -> Message:
        return Message(None, (), key)


def _commit_json(commit: Commit, origin: Origin) -> _CommitJson:
    attributes = _commit_attributes(commit, origin)
    head = b'{"specversion":"1.0","id":"%b' % _id(commit)
    source = b'","source":"%b","type":"' % attributes.pop("source")
    named = b"".join([b',"%b":"%b"' % (_ATTRIBUTES[name], text) for name, text in attributes.items()])
    rest = b'%b,"datacontenttype":"application/json","index":"' % named
    return _CommitJson(commit, origin, head, source, rest)


def _commit_attributes(commit: Commit, origin: Origin) -> dict[str, bytes]:
    """None of them needs escapes in JSON. The source comes first, then the time."""
    return {
        "source": _source(origin),
        "time": _time(commit.committed_at),
        "position": b"%d" % commit.position,
        "transaction": b"%d" % commit.transaction,
        "epoch": b"%d" % origin.epoch,
    }


def _snapshot_attributes(
    row: Row, key: bytes, position: Position, origin: Origin, now_ms: int, last: bool
) -> dict[str, bytes]:
    table = row.table.encode()
    return {
        "id": b"read-%d-%d-%d-%b-%b" % (origin.epoch, position, now_ms, table, key),
        "source": _source(origin),
        "type": _TYPES[type(row), "READ"],
        "subject": key,
        "time": _time(now_ms * 1000),
        "partitionkey": key,
        "position": b"%d" % position,
        "epoch": b"%d" % origin.epoch,
        "snapshot": b"last" if last else b"true",
    }


def _id(commit: Commit) -> bytes:
    """Repeated deliveries of an event have the same id."""
    return b"%d-%d-" % (commit.transaction, commit.position)


@lru_cache(maxsize=4)
def _source(origin: Origin) -> bytes:
    return f"/astha/{quote(origin.group, safe='')}/{quote(origin.name, safe='')}".encode()


@lru_cache(maxsize=4)
def _time(at_us: int) -> bytes:
    return f"{(_EPOCH + timedelta(microseconds=at_us)).isoformat(timespec='microseconds')}Z".encode()


def _content_type(value: str, binding: Binding) -> tuple[Header, ...]:
    """On MQTT it is a property of its own, not a user property."""
    return (("content-type", value.encode()),) if binding == "kafka" else ()


def _data(event: Event[Row]) -> bytes:
    row = event.data
    encode = NESTED_ROW_ENCODERS[type(row)]
    if event.operation is Operation.DELETE:
        return b'{"before":%b,"after":null}' % encode(row)
    before = b"null" if event.before is None else encode(event.before)
    return b'{"before":%b,"after":%b}' % (before, encode(row))


def _snapshot_data(row: Row) -> bytes:
    return b'{"before":null,"after":%b}' % NESTED_ROW_ENCODERS[type(row)](row)


_TYPES = {
    (kind, operation): f"astha.{kind.table}.{operation.lower()}".encode()
    for kind in PUBLISHED
    for operation in (*(known.value for known in Operation), "READ")
}
