"""CloudEvents: the CloudEvents SDK reads our messages, and attributes are as the specification wants them.

The SDK has no MQTT binding. There, by the specification's MQTT binding, user properties are attributes under their own
names and the property Content Type is `datacontenttype`; the SDK checks the event that results.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from components.lib.change_formats import Binding, ChangeFormat, FormatSettings, Message, Origin, key_of, open_format
from registry.models import Topic
from registry.position import Position
from tests.fixtures.rows import extreme_rows
from tests.unit.components.lib.change_formats.examples import (
    NOW_MS,
    ORIGIN,
    PARTITION,
    TOPIC,
    commit,
    delete,
    insert,
    update,
)

STRUCTURED = FormatSettings(format="cloudevents")
BINARY = FormatSettings(format="cloudevents", mode="binary")
WAYS: list[tuple[FormatSettings, Binding]] = [
    (STRUCTURED, "kafka"),
    (BINARY, "kafka"),
    (STRUCTURED, "mqtt"),
    (BINARY, "mqtt"),
]
TOPIC_COLUMNS = {
    "name": "orders",
    "partition_count": 3,
    "retention_ms": None,
    "config": {"acks": 1},
    "created_at": 10,
    "updated_at": 20,
}
COMMON = {
    "specversion": "1.0",
    "source": "/astha/astha/registry",
    "datacontenttype": "application/json",
    "epoch": "7",
}
CHANGE = {**COMMON, "position": "95", "transaction": "1042", "time": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)}

by_every_way = pytest.mark.parametrize(("settings", "binding"), WAYS, ids=lambda way: getattr(way, "mode", way))


def read(message: Message, encoder: ChangeFormat, settings: FormatSettings, binding: Binding) -> BaseCloudEvent:
    assert message.value is not None
    if binding == "kafka":
        return from_kafka(KafkaMessage(dict(message.headers), message.key, message.value), JSONFormat())
    if settings.mode == "structured":
        assert message.headers == ()
        assert encoder.content_type.startswith("application/cloudevents+json")
        return JSONFormat().read(None, message.value)
    attributes: dict[str, Any] = {name: text.decode() for name, text in message.headers}
    attributes["time"] = datetime.fromisoformat(attributes["time"])
    return CloudEvent({**attributes, "datacontenttype": encoder.content_type}, json.loads(message.value))


def change(event: Any, settings: FormatSettings, binding: Binding, origin: Origin = ORIGIN) -> BaseCloudEvent:
    encoder = open_format(settings, binding)
    return read(encoder.change(event, origin, NOW_MS), encoder, settings, binding)


@by_every_way
def test_an_insert(settings: FormatSettings, binding: Binding) -> None:
    event = change(insert(TOPIC, commit(9), 3), settings, binding)
    key = '{"name":"orders"}'
    assert event.get_attributes() == {
        **CHANGE,
        "id": "1042-95-3",
        "type": "astha.topics.insert",
        "subject": key,
        "partitionkey": key,
        "index": "3",
    }
    assert event.get_data() == {"before": None, "after": TOPIC_COLUMNS}


@by_every_way
def test_an_update_and_a_deletion(settings: FormatSettings, binding: Binding) -> None:
    key = '{"topic":"orders","partition_id":0}'
    event = change(update(PARTITION, PARTITION, commit(2), 1), settings, binding)
    assert event.get_attributes() == {
        **CHANGE,
        "id": "1042-95-1",
        "type": "astha.partitions.update",
        "subject": key,
        "partitionkey": key,
        "index": "1",
    }
    assert event.get_data() == {"before": PARTITION.to_builtins(), "after": PARTITION.to_builtins()}
    event = change(delete(PARTITION), settings, binding)
    assert event.get_type() == "astha.partitions.delete"
    assert event.get_data() == {"before": PARTITION.to_builtins(), "after": None}


@by_every_way
@pytest.mark.parametrize(("last", "snapshot"), [(False, "true"), (True, "last")])
def test_a_row_of_a_snapshot(settings: FormatSettings, binding: Binding, last: bool, snapshot: str) -> None:
    encoder = open_format(settings, binding)
    message = encoder.snapshot_row(TOPIC, Position(90), ORIGIN, NOW_MS, last)
    event = read(message, encoder, settings, binding)
    key = '{"name":"orders"}'
    assert event.get_attributes() == {
        **COMMON,
        "id": f"read-7-90-{NOW_MS}-topics-{key}",
        "type": "astha.topics.read",
        "subject": key,
        "partitionkey": key,
        "time": datetime(2023, 11, 14, 22, 13, 21, tzinfo=UTC),
        "position": "90",
        "snapshot": snapshot,
    }
    assert event.get_data() == {"before": None, "after": TOPIC_COLUMNS}


@by_every_way
def test_every_row_of_every_table_reads_back(settings: FormatSettings, binding: Binding) -> None:
    encoder = open_format(settings, binding)
    for row in extreme_rows():
        columns = row.to_builtins()
        for event, data in (
            (insert(row), {"before": None, "after": columns}),
            (update(row, row), {"before": columns, "after": columns}),
            (delete(row), {"before": columns, "after": None}),
        ):
            found = read(encoder.change(event, ORIGIN, NOW_MS), encoder, settings, binding)
            assert found.get_data() == data
            assert json.loads(found.get_subject() or "") == json.loads(key_of(row))
        message = encoder.snapshot_row(row, Position(1), ORIGIN, NOW_MS, last=False)
        assert read(message, encoder, settings, binding).get_data() == {"before": None, "after": columns}


@by_every_way
def test_a_repeated_delivery_has_the_same_id_and_other_events_have_others(
    settings: FormatSettings, binding: Binding
) -> None:
    events = [insert(TOPIC, commit(2), 0), insert(TOPIC, commit(2), 1), insert(TOPIC, commit(position=96), 0)]
    assert len({change(event, settings, binding).get_id() for event in (*events, *events)}) == 3
    successor = Origin("registry", "astha", 8, "postgresql")
    again = change(events[0], settings, binding, successor)
    assert (again.get_id(), again.get_source()) == ("1042-95-0", "/astha/astha/registry")
    assert again.get_extension("epoch") == "8"


def test_a_new_epoch_is_seen_within_a_commit() -> None:
    event = insert(TOPIC)
    for settings, binding in WAYS:
        encoder = open_format(settings, binding)
        for epoch in (7, 8):
            message = encoder.change(event, Origin("registry", "astha", epoch, "postgresql"), NOW_MS)
            assert read(message, encoder, settings, binding).get_extension("epoch") == str(epoch)


def test_names_in_the_source_are_quoted() -> None:
    event = change(insert(TOPIC), BINARY, "kafka", Origin('a b/"c"', "grüße", 7, "sqlite"))
    assert event.get_source() == "/astha/gr%C3%BC%C3%9Fe/a%20b%2F%22c%22"


@pytest.mark.parametrize("binding", ["kafka", "mqtt"])
def test_content_types(binding: Binding) -> None:
    structured, binary = open_format(STRUCTURED, binding), open_format(BINARY, binding)
    assert structured.content_type == "application/cloudevents+json; charset=UTF-8"
    assert binary.content_type == "application/json"
    for encoder in (structured, binary):
        sent = [encoder.change(insert(TOPIC), ORIGIN, NOW_MS)]
        sent.append(encoder.snapshot_row(TOPIC, Position(1), ORIGIN, NOW_MS, last=False))
        for message in sent:
            named = dict(message.headers).get("content-type")
            assert named == (encoder.content_type.encode() if binding == "kafka" else None)


def test_names_of_attributes_keep_to_the_specification() -> None:
    encoder = open_format(BINARY, "mqtt")
    messages = [encoder.change(insert(TOPIC), ORIGIN, NOW_MS)]
    messages.append(encoder.snapshot_row(TOPIC, Position(1), ORIGIN, NOW_MS, last=False))
    for message in messages:
        names = [name for name, _ in message.headers]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch("[a-z0-9]{1,20}", name) for name in names)


def test_attributes_have_no_excluded_characters() -> None:
    """Strings of CloudEvents exclude control characters, surrogates and noncharacters; the key keeps them."""
    name = "a\x00\t\n\x7f\x85\u2028\ufdd0\uffff\U0001fffe\U0010ffff é 日本 \U0001f98a"
    row = Topic(name, 1, None, TOPIC.config, 0, 0)
    encoder = open_format(BINARY, "mqtt")
    for message in (encoder.change(insert(row), ORIGIN, 0), encoder.snapshot_row(row, Position(1), ORIGIN, 0, True)):
        assert json.loads(message.key or b"") == {"name": name}
        attributes = {attribute: text.decode() for attribute, text in message.headers}
        assert json.loads(attributes["subject"]) == json.loads(attributes["partitionkey"]) == {"name": name}
        excluded = re.compile("[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\U0001fffe\U0001ffff\U0010fffe\U0010ffff]")
        assert not any(excluded.search(text) for text in attributes.values())
        assert "é 日本 \U0001f98a" in attributes["subject"]
