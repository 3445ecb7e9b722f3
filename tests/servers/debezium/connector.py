"""Debezium's PostgreSQL connector, to compare with: what it sends of the same changes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.servers.debezium.jars import classpath
from tests.servers.jars import java

_GIVE_UP_S = 120


class Captured(NamedTuple):
    """A record as JSON with its schema; a tombstone has no value."""

    key: bytes
    value: bytes | None


def capture(url: str, slot: str, records: int, name: str) -> list[Captured]:
    """Returns the first records of the slot, read through the publication ``astha``. `name` is the topic prefix."""
    server = urlsplit(url)
    settings = {
        "name": "capture",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "database.hostname": server.hostname,
        "database.port": server.port,
        "database.user": server.username,
        "database.dbname": server.path[1:],
        "topic.prefix": name,
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": "astha",
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "provide.transaction.metadata": "true",
        "skipped.operations": "none",
        "poll.interval.ms": 10,
    }
    command = [
        java(),
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-cp",
        classpath(Path(__file__).with_name("CaptureChanges.java")),
    ]
    command += ["CaptureChanges", str(records), *(f"{option}={value}" for option, value in settings.items())]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=_GIVE_UP_S)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"Debezium sent fewer than {records} records: {error.stderr!r}") from error
    if done.returncode != 0:
        raise AssertionError(f"Debezium failed: {done.stderr[-2000:]}")
    lines = done.stdout.split("\n")[:-1]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return [Captured(key.encode(), None if value == "null" else value.encode()) for key, value in pairs]
