"""Debezium's own PostgreSQL connector reads the same changes from the registry: its records and ours are the same.

Differences are those that docs/parts/fanout.md describes: names without the PostgreSQL schema, and the fields of
`source`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import psycopg
import pytest
from psycopg import sql

from astha.events import Event, Operation
from components.lib.change_formats import FormatSettings, open_format
from registry.models import PUBLISHED, Row
from tests.fixtures.rows import extreme_rows
from tests.servers.debezium.connector import Captured, capture
from tests.unit.components.lib.change_formats.examples import NOW_MS, ORIGIN, commit, delete, insert, update

pytestmark = pytest.mark.slow

SLOT = "captured"
MARKERS = 2 * 3  # BEGIN and END of each transaction
THEIRS_ONLY = {"xmin", "origin", "origin_lsn"}
OURS_ONLY = {"epoch"}


class Pair(NamedTuple):
    ours: Captured
    theirs: Captured


@pytest.fixture
def pairs(postgres_url: str) -> list[Pair]:
    events = _changes()
    deletions = sum(event.operation is Operation.DELETE for event in events)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        try:
            _apply(connection, events)
            captured = capture(postgres_url, SLOT, len(events) + deletions + MARKERS, ORIGIN.name)
        finally:
            connection.execute(  # and waits for it: the reader ends without closing its connection
                "SELECT pg_terminate_backend(active_pid, 30000) FROM pg_replication_slots WHERE slot_name = %s", [SLOT]
            )
            connection.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
    theirs = [record for record in captured if b"TransactionMetadata" not in record.key]
    return [Pair(*pair) for pair in zip(_encoded(events), theirs, strict=True)]


def test_both_send_the_same_records(pairs: list[Pair]) -> None:
    assert {_table(pair) for pair in pairs} == {kind.table for kind in PUBLISHED}
    for ours, theirs in pairs:
        our_key, their_key = json.loads(ours.key), _renamed(theirs.key)
        assert our_key == their_key
        assert (ours.value is None) is (theirs.value is None)
        if ours.value is None or theirs.value is None:
            continue
        our_value, their_value = json.loads(ours.value), _renamed(theirs.value)
        _separate_source(our_value, OURS_ONLY)
        _separate_source(their_value, THEIRS_ONLY)
        assert our_value["schema"] == their_value["schema"]
        assert _comparable(our_value["payload"]) == _comparable(their_value["payload"])


def _changes() -> list[Event[Row]]:
    """Three transactions: inserts, updates, deletions, children after and before their parents."""
    rows = extreme_rows()
    changed = [_changed(row) for row in rows]
    inserted, updated, deleted = (commit(len(rows), position) for position in (10, 20, 30))
    return [
        *(insert(row, inserted, index) for index, row in enumerate(rows)),
        *(update(old, new, updated, index) for index, (old, new) in enumerate(zip(rows, changed, strict=True))),
        *(delete(row, deleted, index) for index, row in enumerate(reversed(changed))),
    ]


def _changed(row: Row) -> Row:
    """Returns the row with another time. Every table has a column for one, and none has a constraint on it."""
    columns = ("updated_at", "committed_at", "started_at", "acquired_at", "modified_at", "created_at")
    column = next(name for name in columns if name in row.__struct_fields__)
    return msgspec.structs.replace(row, **{column: 17})


def _apply(connection: psycopg.Connection[Any], events: list[Event[Row]]) -> None:
    for group in {id(event.commit): event.commit for event in events}.values():
        with connection.transaction():
            for event in events:
                if event.commit is group:
                    _execute(connection, event)


def _execute(connection: psycopg.Connection[Any], event: Event[Row]) -> None:
    row = msgspec.structs.asdict(event.data)
    table = sql.Identifier(event.table)
    names = [sql.Identifier(name) for name in row]
    key = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in event.data.key)
    values, keys = list(row.values()), [row[name] for name in event.data.key]
    match event.operation:
        case Operation.INSERT:
            statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                table, sql.SQL(", ").join(names), sql.SQL(", ").join([sql.Placeholder()] * len(names))
            )
            connection.execute(statement, values)
        case Operation.UPDATE:
            assignments = sql.SQL(", ").join(sql.SQL("{} = %s").format(name) for name in names)
            connection.execute(sql.SQL("UPDATE {} SET {} WHERE {}").format(table, assignments, key), [*values, *keys])
        case Operation.DELETE:
            connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(table, key), keys)


def _encoded(events: list[Event[Row]]) -> Iterator[Captured]:
    encoder = open_format(FormatSettings(schemas=True), "kafka")
    for event in events:
        message = encoder.change(event, ORIGIN, NOW_MS)
        key = message.key or b""
        yield Captured(key, message.value)
        if event.operation is Operation.DELETE:
            yield Captured(key, encoder.tombstone(key).value)


def _table(pair: Pair) -> str:
    return str(json.loads(pair.ours.key)["schema"]["name"]).split(".")[1]


def _renamed(record: bytes) -> Any:
    """Their names of schemas have the PostgreSQL schema after the topic prefix."""
    return json.loads(record.replace(b'"name":"registry.public.', b'"name":"registry.'))


def _separate_source(value: Any, own: set[str]) -> None:
    """Takes the fields that only one of the two has out of the schema of `source`, and the name of that schema."""
    source = next(field for field in value["schema"]["fields"] if field["field"] == "source")
    assert {field["field"] for field in source["fields"]} >= own
    source["fields"] = [field for field in source["fields"] if field["field"] not in own]
    del source["name"]


def _comparable(payload: Any) -> Any:
    transaction, source = payload["transaction"], payload["source"]
    return {
        "before": payload["before"],
        "after": payload["after"],
        "op": payload["op"],
        "order": (transaction["total_order"], transaction["data_collection_order"]),
        "source": (source["name"], source["schema"], source["table"], source["snapshot"]),
        "times": [type(payload[name]) for name in ("ts_ms", "ts_us", "ts_ns")],
    }
