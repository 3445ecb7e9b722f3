"""Reads records as Kafka Connect and Debezium do: `ReadRecords.java` over any records, from memory or from a topic."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.servers.debezium.jars import classpath
from tests.servers.jars import java

# Deletions become rows with __deleted, tombstones are kept, and fields of the envelope are added with the prefix __.
REWRITE: Mapping[str, str] = {
    "delete.tombstone.handling.mode": "rewrite-with-tombstone",
    "add.fields": "op,table,lsn,source.ts_ms,transaction.id",
    "add.headers": "op",
}


class Record(NamedTuple):
    topic: str
    key: bytes | None
    value: bytes | None


class ConnectRecord(msgspec.Struct, frozen=True):
    """A record as a connector sees it. Types are those of Kafka Connect, by field; None without a schema."""

    key: Any
    key_types: Any
    value: Any
    value_types: Any
    headers: dict[str, Any]


class Seen(msgspec.Struct, frozen=True):
    converted: ConnectRecord  # by JsonConverter
    extracted: ConnectRecord | None  # by ExtractNewRecordState, which may drop a record


def read_records(records: Iterable[Record], schemas: bool, settings: Mapping[str, str] = REWRITE) -> list[Seen]:
    """Returns what Kafka Connect and Debezium make of these records. Raises if they refuse any."""
    lines = [json.dumps({"topic": topic, "key": _text(key), "value": _text(value)}) for topic, key, value in records]
    source = Path(__file__).with_name("ReadRecords.java")
    command = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath(source)]
    command += ["ReadRecords", str(schemas).lower(), *(f"{name}={value}" for name, value in settings.items())]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise AssertionError(f"Debezium's reader failed: {done.stderr[-2000:]}")
    found = [msgspec.json.decode(line, type=Seen) for line in done.stdout.split("\n") if line]
    assert len(found) == len(lines), done.stderr[-2000:]
    return found


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
