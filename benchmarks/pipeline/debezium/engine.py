"""Starts a Java main with Debezium's engine on a slot."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.servers.debezium import jars
from tests.servers.jars import java

VERSION = jars.VERSION
JVM = ("-Xmx1g", "-XX:+UseParallelGC")

Settings = Mapping[str, str | int]

# What drained fastest of what was tried; records stay Kafka Connect's own objects, because JSON costs it more.
BULK: Settings = {
    "max.batch.size": 16_384,
    "max.queue.size": 65_536,
    "poll.interval.ms": 1,
    "record.processing.threads": 1,
}
# It polls once per interval: the shortest interval has the lowest latency and the highest idle cost. It hands changes
# over when a batch is full or an interval is over, so a batch of one is handed over at once.
PROMPT: Settings = {"max.batch.size": 1, "poll.interval.ms": 1}
AS_SHIPPED: Settings = {}


DRAIN = Path(__file__).with_name("Drain.java")


def start(
    host: str, port: int, database: str, slot: str, settings: Settings, expect: int = 0, main: Path = DRAIN
) -> subprocess.Popen[str]:
    """Reads the slot through the publication ``astha``, from the slot's position; ``main`` describes its output."""
    every: dict[str, str | int] = {
        "name": "drain",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "database.hostname": host,
        "database.port": port,
        "database.user": "postgres",
        "database.dbname": database,
        "topic.prefix": "drain",
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": "astha",
        "publication.autocreate.mode": "disabled",
        "table.include.list": "public.segments",
        "snapshot.mode": "no_data",
        **settings,
    }
    command = [java(), *JVM, "-cp", classpath(main), main.stem, str(expect)]
    command += [f"{name}={value}" for name, value in every.items()]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def classpath(main: Path = DRAIN) -> str:
    """Returns the class path of this Java main and its dependencies. The first call downloads and compiles."""
    return jars.classpath(main)
