"""The oracle with a leader and two followers, one per transport, and with brokers that fail too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from registry.connect import open_store
from tests.doubles.proxy import TcpProxy
from tests.faults.daemon_process import ProcessOptions
from tests.faults.oracle import SETTLE_S, Oracle, Process
from tests.fixtures.kafka import MakeKafka
from tests.servers.kafka import KafkaBroker
from tests.servers.mosquitto import Mosquitto
from tests.waiting import eventually

PREFIX = "oracle"
TOPIC = f"{PREFIX}.transactions"

TROUBLES = {
    "kill": 5, "stop": 2, "freeze": 2, "double": 2, "rest": 2,
    "kafka": 2, "kafka hangs": 1, "mqtt": 2, "mqtt hangs": 1,
    "truncate": 2, "retention": 1, "partition": 3, "partition hangs": 3,
}  # fmt: skip
CERTAIN = ("truncate", "partition", "partition hangs")
"""Troubles of every run, however short."""

_LOOPBACK = "127.0.0.1"
_SIDES = ("LEADER", "FOLLOWER")


class Brokers(msgspec.Struct, frozen=True):
    """One broker per transport. The leader and the followers reach each of them through a proxy of their own, so that a
    partition can take a broker from one of the two sides only.
    """

    kafka: KafkaBroker
    mosquitto: Mosquitto
    kafka_proxies: dict[str, TcpProxy]  # by side
    mqtt_proxies: dict[str, TcpProxy]

    @classmethod
    @asynccontextmanager
    async def start(cls, make_kafka: MakeKafka, mosquitto: Mosquitto) -> AsyncIterator[Brokers]:
        async with AsyncExitStack() as stack:
            kafka_proxies = {side: await stack.enter_async_context(TcpProxy(_LOOPBACK, 0)) for side in _SIDES}
            kafka = make_kafka(advertised={side: f"{_LOOPBACK}:{proxy.port}" for side, proxy in kafka_proxies.items()})
            for side, proxy in kafka_proxies.items():
                proxy.lead_to(_LOOPBACK, kafka.port_of(side))
            mqtt_proxies = {
                side: await stack.enter_async_context(TcpProxy(_LOOPBACK, mosquitto.port)) for side in _SIDES
            }
            yield cls(kafka, mosquitto, kafka_proxies, mqtt_proxies)

    @property
    def proxies(self) -> list[TcpProxy]:
        return [*self.kafka_proxies.values(), *self.mqtt_proxies.values()]

    def sink_settings(self) -> dict[str, dict[str, Any]]:
        """Short timeouts: a broker is away for a second or two."""
        return {
            "kafka_sink": {
                "bootstrap_servers": f"{_LOOPBACK}:{self.kafka_proxies['LEADER'].port}", "layout": "transactions",
                "prefix": PREFIX, "heartbeat_s": 0.3, "acknowledge_timeout_s": 3.0, "request_timeout_s": 2.0,
                "connect_timeout_s": 2.0, "outage_tolerance_s": 1.0,
            },
            "mqtt_sink": {
                "url": f"mqtt://{_LOOPBACK}:{self.mqtt_proxies['LEADER'].port}", "prefix": PREFIX, "changes": False,
                "heartbeat_s": 0.3, "timeout_s": 3.0,
            },
        }  # fmt: skip

    def streams(self) -> dict[str, str]:
        """Returns the URLs that the followers read."""
        return {
            "kafka": f"kafka://{_LOOPBACK}:{self.kafka_proxies['FOLLOWER'].port}/{TOPIC}",
            "mqtt": f"mqtt://{_LOOPBACK}:{self.mqtt_proxies['FOLLOWER'].port}/{PREFIX}",
        }


class FollowerOracle(Oracle):
    """Every component of every daemon ends with the database's rows; each leader and follower may fail."""

    def __init__(self, url: str, stream_url: str, directory: Path, seed: str, brokers: Brokers) -> None:
        super().__init__(url, stream_url, directory, seed, dict(TROUBLES))
        self.certain = list(CERTAIN)
        self.brokers = brokers
        options = msgspec.structs.replace(self.process.options, sinks=brokers.sink_settings())
        self.process = Process(options, seed)
        self.followers = {name: self._follower(name, stream) for name, stream in brokers.streams().items()}
        self.processes = [self.process, *self.followers.values()]

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
            "mqtt": self._restart_mosquitto, "mqtt hangs": self._hang_mosquitto, "truncate": self._truncate,
            "retention": self._truncate_while_away, "partition": self._partition,
            "partition hangs": self._partition_silently,
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
            await eventually(partial(self._leads, second), f"seed {self.seed!r}: the second daemon leads", SETTLE_S)
            await asyncio.sleep(self.random.choice([0.0, 2.0]))
            first.start()
            second.require_alive()
        except Exception:
            print(await second.report())  # noqa: T201
            raise
        finally:
            second.kill()

    async def _leads(self, process: Process) -> bool:
        process.require_alive()
        await asyncio.sleep(0.05)
        store = await open_store(self.url)
        try:
            lease = await store.get_daemon_lease(process.options.group)
        finally:
            await store.close()
        return lease is not None and lease.holder == process.options.holder

    async def report(self) -> None:
        """Prints the last records of the topic, and what the follower's group has committed."""
        lines = await asyncio.to_thread(last_records, self.brokers.kafka.address)
        print("\n".join(["---- the topic", *lines]))  # noqa: T201

    async def _restart_kafka(self) -> None:
        await asyncio.to_thread(self.brokers.kafka.kill)
        await asyncio.sleep(self.random.choice([0.0, 2.0]))
        await asyncio.to_thread(self.brokers.kafka.start)

    async def _hang_kafka(self) -> None:
        self.brokers.kafka.pause()
        await asyncio.sleep(self.random.choice([0.5, 4.0]))
        self.brokers.kafka.resume()

    async def _truncate(self) -> None:
        """Deletes every record of the topic, as its retention would."""
        await asyncio.to_thread(truncate, self.brokers.kafka.address)

    async def _truncate_while_away(self) -> None:
        """The follower's committed offset is gone when it comes back."""
        follower = self.followers["kafka"]
        follower.kill()
        await asyncio.sleep(self.random.uniform(0.2, 1.0))
        await self._truncate()
        follower.start()

    async def _restart_mosquitto(self) -> None:
        await asyncio.to_thread(self.brokers.mosquitto.kill)
        await asyncio.sleep(self.random.choice([0.0, 2.0]))
        await asyncio.to_thread(self.brokers.mosquitto.start)

    async def _hang_mosquitto(self) -> None:
        self.brokers.mosquitto.pause()
        await asyncio.sleep(self.random.choice([0.5, 4.0]))
        self.brokers.mosquitto.resume()

    async def _partition(self) -> None:
        """Connections are reset, and new ones too."""
        proxies = self._partitioned()
        for proxy in proxies:
            proxy.refuse()
        await asyncio.sleep(self.random.choice([0.2, 1.5, 4.0]))
        for proxy in proxies:
            proxy.accept()

    async def _partition_silently(self) -> None:
        """Connections stay open and no byte arrives. Afterwards the bytes arrive late, or never."""
        proxies = self._partitioned()
        for proxy in proxies:
            proxy.go_deaf()
        await asyncio.sleep(self.random.choice([0.2, 1.5, 4.0]))
        late = self.random.random() < 0.5
        for proxy in proxies:
            if not late:
                proxy.cut()
            proxy.listen()

    def _partitioned(self) -> list[TcpProxy]:
        """Chooses who can't reach which broker any more."""
        return self.random.sample(self.brokers.proxies, self.random.choice([1, 1, 2, 4]))


def last_records(address: str, count: int = 30) -> list[str]:
    """Returns the last records of the topic, shortened; or why it can't be read."""
    partition = TopicPartition(TOPIC, 0)
    try:
        with closing(KafkaConsumer(bootstrap_servers=address, group_id="astha-kafka_follower")) as consumer:
            consumer.assign([partition])
            begin = consumer.beginning_offsets([partition])[partition]
            end = consumer.end_offsets([partition])[partition]
            lines = [f"offsets {begin} to {end}, committed {consumer.committed(partition, metadata=True)}"]
            consumer.seek(partition, max(begin, end - count))
            while consumer.position(partition) < end:
                found = consumer.poll(timeout_ms=1_000).get(partition, ())
                lines += [f"{one.offset} {one.timestamp} {(one.value or b'')[:300]!r}" for one in found]
            return lines
    except KafkaError as error:
        return [f"the topic can't be read: {error!r}"]


def truncate(address: str) -> None:
    """Waits until the topic has records: the leader's sink creates it, and the broker may have started just now."""
    partition = TopicPartition(TOPIC, 0)
    deadline = time.monotonic() + SETTLE_S
    with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        while True:
            reason = "it is empty"
            try:
                if admin.delete_records({partition: -1})[partition]["low_watermark"] > 0:
                    return
            except KafkaError as error:
                reason = repr(error)
            assert time.monotonic() < deadline, f"topic {TOPIC} could not be truncated: {reason}"
            time.sleep(0.2)
