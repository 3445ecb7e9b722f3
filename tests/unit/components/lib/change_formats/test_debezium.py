"""The Debezium envelope, field by field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from astha.events import Event
from astha.version import version
from components.lib.change_formats import ChangeFormat, FormatSettings, Origin, open_format, split_key_change
from registry.models import PUBLISHED, Row
from registry.position import Position
from registry.schema import table_of
from tests.unit.components.lib.change_formats.examples import (
    NOW_MS,
    ORIGIN,
    PARTITION,
    SEGMENT,
    TOPIC,
    commit,
    delete,
    insert,
    update,
)

TOPIC_COLUMNS = {
    "name": "orders",
    "partition_count": 3,
    "retention_ms": None,
    "config": '{"acks":1}',
    "created_at": 10,
    "updated_at": 20,
}


@pytest.fixture
def envelopes() -> ChangeFormat:
    return open_format(FormatSettings(), "kafka")


def value_of(encoder: ChangeFormat, event: Event[Row], origin: Origin = ORIGIN) -> Any:
    value = encoder.change(event, origin, NOW_MS).value
    assert value is not None
    return json.loads(value)


def test_an_insert(envelopes: ChangeFormat) -> None:
    assert value_of(envelopes, insert(TOPIC)) == {
        "before": None,
        "after": TOPIC_COLUMNS,
        "source": {
            "version": version(),
            "connector": "astha",
            "name": "registry",
            "db": "postgresql",
            "schema": "public",
            "table": "topics",
            "ts_ms": 1_700_000_000_123,
            "ts_us": 1_700_000_000_123_456,
            "ts_ns": 1_700_000_000_123_456_000,
            "snapshot": "false",
            "txId": 1042,
            "lsn": 95,
            "epoch": 7,
            "sequence": '["95","0"]',
        },
        "transaction": {"id": "1042:95", "total_order": 1, "data_collection_order": 1},
        "op": "c",
        "ts_ms": 1_700_000_001_000,
        "ts_us": 1_700_000_001_000_000,
        "ts_ns": 1_700_000_001_000_000_000,
    }


def test_an_update_has_both_rows_and_a_deletion_only_the_old_one(envelopes: ChangeFormat) -> None:
    changed = value_of(envelopes, update(TOPIC, msgspec.structs.replace(TOPIC, partition_count=4)))
    assert (changed["op"], changed["before"]) == ("u", TOPIC_COLUMNS)
    assert changed["after"] == {**TOPIC_COLUMNS, "partition_count": 4}
    deleted = value_of(envelopes, delete(TOPIC))
    assert (deleted["op"], deleted["before"], deleted["after"]) == ("d", TOPIC_COLUMNS, None)


@pytest.mark.parametrize(("last", "snapshot"), [(False, "true"), (True, "last")])
def test_a_row_of_a_snapshot(envelopes: ChangeFormat, last: bool, snapshot: str) -> None:
    value = envelopes.snapshot_row(TOPIC, Position(90), ORIGIN, NOW_MS, last).value
    assert value is not None
    read = json.loads(value)
    assert (read["op"], read["before"], read["after"], read["transaction"]) == ("r", None, TOPIC_COLUMNS, None)
    assert (read["source"]["snapshot"], read["source"]["txId"], read["source"]["lsn"]) == (snapshot, None, 90)
    assert (read["source"]["sequence"], read["source"]["ts_ms"]) == ('["90",null]', NOW_MS)


def test_events_are_numbered_in_their_transaction_and_in_their_table(envelopes: ChangeFormat) -> None:
    shared = commit(4)
    events = [insert(row, shared, index) for index, row in enumerate((TOPIC, PARTITION, SEGMENT, PARTITION))]

    def numbers() -> list[tuple[int, int]]:
        found = [value_of(envelopes, event)["transaction"] for event in events]
        return [(each["total_order"], each["data_collection_order"]) for each in found]

    assert numbers() == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert numbers() == [(1, 1), (2, 1), (3, 1), (4, 2)]  # delivered again


def test_an_event_that_is_delivered_again_keeps_its_numbers(envelopes: ChangeFormat) -> None:
    event = insert(TOPIC, commit(9), 5)
    assert value_of(envelopes, event) == value_of(envelopes, event)


def test_both_parts_of_a_changed_key_have_the_numbers_of_the_update(envelopes: ChangeFormat) -> None:
    shared = commit(2)
    value_of(envelopes, insert(TOPIC, shared, 0))
    renamed = update(TOPIC, msgspec.structs.replace(TOPIC, name="other"), shared, 1)
    found = [value_of(envelopes, part) for part in split_key_change(renamed)]
    assert [each["op"] for each in found] == ["d", "c"]
    for each in found:
        assert each["transaction"] == {"id": "1042:95", "total_order": 2, "data_collection_order": 2}
        assert each["source"]["sequence"] == '["95","1"]'


def test_a_new_origin_replaces_everything_kept_of_the_old_one(envelopes: ChangeFormat) -> None:
    event = insert(TOPIC)
    value_of(envelopes, event)
    successor = Origin('other "name"', "astha", 8, "sqlite")
    source = value_of(envelopes, event, successor)["source"]
    assert (source["name"], source["epoch"], source["db"], source["schema"]) == ('other "name"', 8, "sqlite", "main")


def test_messages_with_schemas_have_the_same_payload() -> None:
    plain, described = open_format(FormatSettings(), "kafka"), open_format(FormatSettings(schemas=True), "kafka")
    for event in (insert(TOPIC), update(TOPIC, TOPIC), delete(TOPIC)):
        value = value_of(described, event)
        assert value.keys() == {"schema", "payload"}
        assert value["payload"] == value_of(plain, event)
        key, bare = described.key(TOPIC, ORIGIN), plain.key(TOPIC, ORIGIN)
        assert json.loads(key)["payload"] == json.loads(bare)


def test_the_schema_of_a_key() -> None:
    described = open_format(FormatSettings(schemas=True), "kafka")
    assert json.loads(described.key(PARTITION, ORIGIN))["schema"] == {
        "type": "struct",
        "fields": [
            {"type": "string", "optional": False, "field": "topic"},
            {"type": "int32", "optional": False, "field": "partition_id"},
        ],
        "optional": False,
        "name": "registry.partitions.Key",
    }


def test_the_schema_of_a_row() -> None:
    described = open_format(FormatSettings(schemas=True), "kafka")
    schema = value_of(described, insert(TOPIC))["schema"]
    assert (schema["name"], schema["version"], schema["optional"]) == ("registry.topics.Envelope", 2, False)
    before, after = schema["fields"][:2]
    assert {**before, "field": "after"} == after
    assert (after["name"], after["optional"]) == ("registry.topics.Value", True)
    assert after["fields"] == [
        {"type": "string", "optional": False, "field": "name"},
        {"type": "int32", "optional": False, "field": "partition_count"},
        {"type": "int64", "optional": True, "field": "retention_ms"},
        {"type": "string", "optional": False, "field": "config", "name": "io.debezium.data.Json", "version": 1},
        {"type": "int64", "optional": False, "field": "created_at"},
        {"type": "int64", "optional": False, "field": "updated_at"},
    ]


@pytest.mark.parametrize("kind", PUBLISHED, ids=lambda kind: kind.table)
def test_no_column_has_a_default_that_the_schema_would_lack(kind: type[Row]) -> None:
    """A default of the database belongs into the schema of the column. There is none so far."""
    assert all(column.server_default is None or column.identity for column in table_of(kind).columns)
