"""The oracle with a leader and two followers, one per transport, and with brokers that fail too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError

from tests.faults.daemon_process import ProcessOptions
from tests.faults.oracle import Oracle, Process
from tests.servers.kafka import KafkaBroker
from tests.servers.mosquitto import Mosquitto

PREFIX = "oracle"
TOPIC = f"{PREFIX}.transactions"

TROUBLES = {
    "kill": 5, "stop": 2, "freeze": 2, "double": 2, "rest": 2,
    "kafka": 2, "kafka hangs": 1, "truncate": 2, "mqtt": 2, "mqtt hangs": 1,
}  # fmt: skip


def sink_settings(kafka: KafkaBroker, mosquitto: Mosquitto) -> dict[str, dict[str, Any]]:
    """Short timeouts: a broker is away for a second or two."""
    return {
        "kafka_sink": {
            "bootstrap_servers": kafka.address, "layout": "transactions", "prefix": PREFIX, "heartbeat_s": 0.3,
            "acknowledge_timeout_s": 3.0, "request_timeout_s": 2.0, "connect_timeout_s": 2.0, "outage_tolerance_s": 1.0,
        },
        "mqtt_sink": {
            "url": mosquitto.url, "prefix": PREFIX, "changes": False, "heartbeat_s": 0.3, "timeout_s": 3.0,
        },
    }  # fmt: skip


class FollowerOracle(Oracle):
    """Every component of every daemon ends with the database's rows; each leader and follower may fail."""

    def __init__(
        self, url: str, stream_url: str, directory: Path, seed: str, kafka: KafkaBroker, mosquitto: Mosquitto
    ) -> None:
        super().__init__(url, stream_url, directory, seed, dict(TROUBLES))
        self.kafka, self.mosquitto = kafka, mosquitto
        options = self.process.options
        options = msgspec.structs.replace(options, sinks=sink_settings(kafka, mosquitto))
        self.process = Process(options, seed)
        follows = {"kafka": f"kafka://{kafka.address}/{TOPIC}", "mqtt": f"{mosquitto.url}/{PREFIX}"}
        self.processes = [self.process, *(self._follower(name, stream) for name, stream in follows.items())]

    def _follower(self, name: str, stream: str) -> Process:
        directory = self.directory / name
        directory.mkdir()
        options = ProcessOptions(
            self.url, self.url, str(directory), self.seed, holder=name, group=f"{name}_follower", follows=stream
        )
        return Process(options, f"{self.seed} {name}")

    def strikes(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return super().strikes() | {
            "double": self._double, "kafka": self._restart_kafka, "kafka hangs": self._hang_kafka,
            "truncate": self._truncate, "mqtt": self._restart_mosquitto, "mqtt hangs": self._hang_mosquitto,
        }  # fmt: skip

    async def _double(self) -> None:
        """A second daemon of a group stands by, takes over when the first is killed, and is killed in its turn."""
        first = self.random.choice(self.processes)
        second = Process(
            msgspec.structs.replace(first.options, holder=f"{first.options.holder} 2"), f"{self.seed} second"
        )
        second.start()
        try:
            await asyncio.sleep(self.random.uniform(0.5, 2.0))
            first.kill()
            await asyncio.sleep(self.random.choice([0.5, 4.0]))
            first.start()
            second.require_alive()
        finally:
            second.kill()

    async def _restart_kafka(self) -> None:
        await asyncio.to_thread(self.kafka.kill)
        await asyncio.sleep(self.random.choice([0.0, 2.0]))
        await asyncio.to_thread(self.kafka.start)

    async def _hang_kafka(self) -> None:
        self.kafka.pause()
        await asyncio.sleep(self.random.choice([0.5, 4.0]))
        self.kafka.resume()

    async def _truncate(self) -> None:
        """Deletes every record of the topic, as its retention would for a follower that was away for long."""
        await asyncio.to_thread(truncate, self.kafka.address)

    async def _restart_mosquitto(self) -> None:
        await asyncio.to_thread(self.mosquitto.kill)
        await asyncio.sleep(self.random.choice([0.0, 2.0]))
        await asyncio.to_thread(self.mosquitto.start)

    async def _hang_mosquitto(self) -> None:
        self.mosquitto.hang()
        await asyncio.sleep(self.random.choice([0.5, 4.0]))
        self.mosquitto.wake()


def truncate(address: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        try:
            admin.delete_records({TopicPartition(TOPIC, 0): -1})
        except KafkaError as error:  # the topic may not exist yet
            print(f"not truncated: {error!r}")  # noqa: T201
