"""Mutated pgoutput messages, compared with a decoder that reads column by column.

Promised: only DecodeError comes out (ConfigError where a Relation message describes another table); a message that is
taken gives what the plain decoder gives, with the types that the model has. The format has no checksum, so a changed
digit is a different value, not an error.
"""

from __future__ import annotations

import random
import struct
from functools import lru_cache
from typing import TypeAlias, get_args, get_type_hints

import msgspec

from astha.errors import ConfigError, DecodeError
from astha.events import Event, Operation
from astha.sources.limits import TransactionLimits
from astha.sources.postgres import decode
from astha.sources.postgres.row_decoder import Relation, compile_decoders, parse_relation
from registry.json_text import JsonText
from registry.models import PUBLISHED, Row
from registry.schema import table_of
from tests.doubles import pgoutput as pg
from tests.fixtures.rows import extreme_rows
from tests.fuzz.mutations import mutated

KINDS = {kind.table: kind for kind in PUBLISHED}
OIDS = {kind: 1_000 + number for number, kind in enumerate(PUBLISHED)}
ROWS = {kind: [row for row in extreme_rows() if type(row) is kind] for kind in PUBLISHED}


def _type_of(hint: object) -> type:
    """Of a class itself, of JSON text the string that it is, of a literal its own type."""
    if hint is JsonText:
        return str
    return hint if isinstance(hint, type) else type(hint)


TYPES: dict[type[Row], dict[str, tuple[type, ...]]] = {
    kind: {
        name: tuple(_type_of(kind) for kind in get_args(hint) or (hint,))
        for name, hint in get_type_hints(kind).items()
        if name in kind.__struct_fields__
    }
    for kind in PUBLISHED
}
NULLABLE = {kind: {column.name for column in table_of(kind).columns if column.nullable} for kind in PUBLISHED}
WORDS = [b"n", b"u", b"t", b"b", b"N", b"O", b"K", b"nnn", b"\0\0\0\x08", b"\0\0\0\x04", b"t\0\0\0\x011", b"u" * 3]

# Compiling takes most of the time, and the same relation gives the same functions.
setattr(decode, "compile_decoders", lru_cache(500)(compile_decoders))  # noqa: B010

INT8, INT2, INT4, BOOL, JSON = 20, 21, 23, 16, 114
WIDTHS = {INT8: 8, INT4: 4, INT2: 2, BOOL: 1}

Value: TypeAlias = object
UNCHANGED = object()


def play(rng: random.Random) -> None:
    kinds = rng.sample(PUBLISHED, 2)
    relations = [_changed(rng, pg.relation(OIDS[kind], kind.table, pg.columns_of(kind)), 0.03) for kind in kinds]
    rows = [_changed(rng, _message(rng, rng.choice(kinds)), 0.4) for _ in range(rng.randrange(1, 8))]
    frame = [_changed(rng, message, 0.03) for message in (pg.begin(7), pg.commit())]
    decoder = decode.Decoder(KINDS, "public", TransactionLimits(events=rng.choice((3, 1_000))))
    described: dict[int, Relation] = {}
    expected: list[tuple[Operation, Row, Row | None]] | None = []
    for message in [*relations, frame[0], *rows, frame[1]]:
        try:
            transaction = decoder.feed(message)
        except DecodeError:
            return
        except ConfigError:
            if message[25:26] != b"R":
                raise
            return
        if message[25:26] == b"R":
            relation = parse_relation(message, 26)
            described[relation.oid] = relation
        elif expected is not None:
            found = _plainly(message, described)
            expected = None if found is None else expected + found
        if transaction is not None and transaction.events and expected is not None:
            _compare(transaction.events, expected)


def _message(rng: random.Random, kind: type[Row]) -> bytes:
    oid, row, other = OIDS[kind], _row(rng, kind), _row(rng, kind)
    match rng.randrange(6):
        case 0:
            return pg.insert(oid, pg.values_of(row))
        case 5:  # markers wherever they may not be
            marked = {rng.choice(row.__struct_fields__): rng.choice((None, pg.Unchanged()))}
            old, new = (pg.values_of(one, marked) if rng.random() < 0.6 else pg.values_of(one) for one in (row, other))
            return rng.choice((pg.insert(oid, old), pg.delete(oid, old), pg.update(oid, old, new)))
        case 1:
            return pg.delete(oid, pg.values_of(row))
        case 2:
            as_text = {
                name: pg.InText({True: "t", False: "f"}[value] if isinstance(value, bool) else str(value))
                for name, value in msgspec.structs.asdict(row).items()
                if value is not None and rng.random() < 0.5
            }
            return pg.insert(oid, pg.values_of(row, as_text))
        case 3:
            words = [name for name, value in msgspec.structs.asdict(row).items() if isinstance(value, str)]
            toasted = {name: pg.Unchanged() for name in words if rng.random() < 0.3}
            return pg.update(oid, pg.values_of(row), pg.values_of(row, toasted))
        case _:
            return pg.update(oid, pg.values_of(row), pg.values_of(other))


def _row(rng: random.Random, kind: type[Row]) -> Row:
    row = rng.choice(ROWS[kind])
    absent = [name for name in NULLABLE[kind] if rng.random() < 0.5]
    return msgspec.structs.replace(row, **dict.fromkeys(absent))


def _changed(rng: random.Random, message: bytes, chance: float) -> bytes:
    return mutated(rng, message, WORDS, start=25) if rng.random() < chance else message


def _compare(events: list[Event[Row]], expected: list[tuple[Operation, Row, Row | None]]) -> None:
    assert [(event.operation, event.data, event.before) for event in events] == expected
    for event in events:
        for row in (event.data, event.before):
            if row is None:
                continue
            for name, kinds in TYPES[type(row)].items():
                assert type(getattr(row, name)) in kinds, (name, row)


def _plainly(message: bytes, described: dict[int, Relation]) -> list[tuple[Operation, Row, Row | None]] | None:
    """Returns a message's rows, decoded the simple way; None if it holds more than rows."""
    kind = message[25:26]
    if kind not in (b"I", b"U", b"D"):
        return None if kind == b"T" else []
    (oid,) = struct.unpack_from(">I", message, 26)
    relation = described[oid]
    model = KINDS.get(relation.name) if relation.schema == "public" else None
    if model is None:
        return []
    tag = message[30:31]
    if kind != b"I" and tag != b"O":
        return None
    values, at = _tuple(message, 31, relation)
    if kind != b"U":
        assert at == len(message)
        row = _modelled(model, values)
        return [(Operation.INSERT, row, None) if kind == b"I" else (Operation.DELETE, row, row)]
    assert message[at : at + 1] == b"N"
    new, end = _tuple(message, at + 1, relation)
    assert end == len(message)
    whole = {name: values[name] if value is UNCHANGED else value for name, value in new.items()}
    return [(Operation.UPDATE, _modelled(model, whole), _modelled(model, values))]


def _modelled(model: type[Row], values: dict[str, Value]) -> Row:
    return model(*(values[name] for name in model.__struct_fields__))


def _tuple(message: bytes, at: int, relation: Relation) -> tuple[dict[str, Value], int]:
    (count,) = struct.unpack_from(">h", message, at)
    assert count == len(relation.columns)
    at += 2
    values: dict[str, Value] = {}
    for column in relation.columns:
        kind = message[at : at + 1]
        at += 1
        if kind in (b"n", b"u"):
            values[column.name] = None if kind == b"n" else UNCHANGED
            continue
        (length,) = struct.unpack_from(">i", message, at)
        data = message[at + 4 : at + 4 + length]
        assert len(data) == length
        at += 4 + length
        values[column.name] = _value(column.type_oid, data, in_text=kind == b"t")
    return values, at


def _value(type_oid: int, data: bytes, *, in_text: bool) -> Value:
    if type_oid == BOOL:
        return data == b"t" if in_text else data != b"\0"
    if type_oid in WIDTHS:
        return int(data) if in_text else int.from_bytes(data, "big", signed=True)
    if type_oid == JSON:
        return JsonText(data.decode())
    return data.decode(errors="replace")
