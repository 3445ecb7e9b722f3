"""Keys: the primary key as JSON, the same bytes in every format."""

from __future__ import annotations

import json

import msgspec
import pytest

from astha.events import Operation
from components.lib.change_formats import Binding, FormatSettings, key_of, open_format, split_key_change
from registry.models import PUBLISHED, ConsumerOffset, Row
from tests.fixtures.rows import extreme_rows
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

WITHOUT_SCHEMA = [
    FormatSettings(),
    FormatSettings(format="json"),
    FormatSettings(format="cloudevents"),
    FormatSettings(format="cloudevents", mode="binary"),
]


def test_a_key_has_the_columns_of_the_primary_key_in_order() -> None:
    assert key_of(SEGMENT) == b'{"id":1}'
    assert key_of(TOPIC) == b'{"name":"orders"}'
    assert key_of(PARTITION) == b'{"topic":"orders","partition_id":0}'
    offset = ConsumerOffset("readers", "orders", 2, 5, None, 9)
    assert key_of(offset) == b'{"group_id":"readers","topic":"orders","partition_id":2}'


def test_every_published_table_has_a_key_that_reads_back() -> None:
    rows = extreme_rows()
    assert {type(row) for row in rows} == set(PUBLISHED)
    for row in rows:
        assert json.loads(key_of(row)) == {name: getattr(row, name) for name in row.key}


@pytest.mark.parametrize("binding", ["kafka", "mqtt"])
@pytest.mark.parametrize("settings", WITHOUT_SCHEMA, ids=str)
def test_all_formats_have_the_same_keys(settings: FormatSettings, binding: Binding) -> None:
    encoder = open_format(settings, binding)
    for row in extreme_rows():
        messages = [encoder.change(event, ORIGIN, NOW_MS) for event in (insert(row), update(row, row), delete(row))]
        messages.append(encoder.snapshot_row(row, commit().position, ORIGIN, NOW_MS, last=False))
        assert {message.key for message in messages} == {key_of(row)} == {encoder.key(row, ORIGIN)}


@pytest.mark.parametrize("settings", [*WITHOUT_SCHEMA, FormatSettings(schemas=True)], ids=str)
def test_a_tombstone_has_the_key_of_the_deletion_and_no_value(settings: FormatSettings) -> None:
    encoder = open_format(settings, "kafka")
    deleted = encoder.change(delete(SEGMENT), ORIGIN, NOW_MS)
    assert deleted.key is not None
    tombstone = encoder.tombstone(deleted.key)
    assert (tombstone.key, tombstone.value, tombstone.headers) == (deleted.key, None, ())


def test_an_update_of_the_key_becomes_a_deletion_and_an_insertion() -> None:
    renamed = msgspec.structs.replace(TOPIC, name="renamed")
    event = update(TOPIC, renamed, commit(3), 1)
    removed, added = split_key_change(event)
    assert (removed.operation, removed.data, removed.before) == (Operation.DELETE, TOPIC, TOPIC)
    assert (added.operation, added.data, added.before) == (Operation.INSERT, renamed, None)
    assert all(part.commit is event.commit and part.index == 1 for part in (removed, added))


@pytest.mark.parametrize("row", extreme_rows(), ids=lambda row: row.table)
def test_other_events_are_not_split(row: Row) -> None:
    for event in (insert(row), update(row, row), delete(row)):
        assert split_key_change(event) == (event,)
