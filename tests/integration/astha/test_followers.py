"""A leader with the real sinks, and a daemon that follows it: on both databases, over both transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from astha.clock import SystemLoopClock
from astha.errors import ConfigError
from astha.preflight import PreflightResult, Verdict, preflight
from astha.server.health import readiness
from astha.settings import Settings, load_settings
from astha.testing import RecordingSubscriber
from astha.wiring import assemble
from registry.contract import MetadataStore
from tests.fixtures.daemons import Running
from tests.fixtures.followers import new_name
from tests.fixtures.sources import postgres_settings
from tests.fixtures.stores import OpenStore
from tests.servers.kafka import KafkaBroker
from tests.servers.mosquitto import Mosquitto
from tests.waiting import eventually

TABLES = ("topics", "partitions", "consumer_groups")

Start: TypeAlias = Callable[[Settings], Awaitable[Running]]


class Stream:
    """One transport: what the leader's sink is told, and the URL of followers."""

    def __init__(self, sink: str, sink_settings: dict[str, Any], url: str) -> None:
        self.sink, self.sink_settings, self.url = sink, sink_settings, url


@pytest.fixture(params=["kafka", "mqtt"])
def stream(request: pytest.FixtureRequest) -> Stream:
    name = new_name()
    if request.param == "kafka":
        kafka: KafkaBroker = request.getfixturevalue("kafka")
        settings = {"bootstrap_servers": kafka.address, "layout": "transactions", "prefix": name, "heartbeat_s": 0.1}
        return Stream("kafka_sink", settings, f"kafka://{kafka.address}/{name}.transactions")
    mosquitto: Mosquitto = request.getfixturevalue("mosquitto")
    settings = {"url": mosquitto.url, "prefix": name, "heartbeat_s": 0.1}
    return Stream("mqtt_sink", settings, f"{mosquitto.url}/{name}")


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def run(settings: Settings) -> Running:
            assembled = await assemble(settings, SystemLoopClock())
            stack.push_async_callback(assembled.stores.close)
            subscribers = {each.name: each.subscriber for each in assembled.daemon.components}
            running = Running(assembled.daemon, subscribers)

            async def end() -> None:
                running.task.cancel()
                await asyncio.gather(running.task, return_exceptions=True)
                await running.daemon.source.close()

            stack.push_async_callback(end)
            return running

        yield run


class Deployment:
    def __init__(self, url: str, directory: Path, stream: Stream) -> None:
        self._url, self._directory, self._stream = url, directory, stream

    def leader(self, tables: tuple[str, ...] = TABLES) -> Settings:
        entry = {"tables": list(tables), "settings": self._stream.sink_settings}
        return self._settings("leader", {self._stream.sink: entry}, {})

    def follower(self, group: str = "remote", **source: Any) -> Settings:
        entry = {"use": "tests.integration.astha.test_followers:record", "tables": list(TABLES)}
        return self._settings(group, {"audit": entry}, {"group": group}, url=self._stream.url, **source)

    def _settings(self, name: str, components: dict[str, Any], flags: dict[str, Any], **source: Any) -> Settings:
        path = self._directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"components": components}))
        if self._url.startswith("postgresql"):
            source = {**postgres_settings(self._url).model_dump(), **source}
        return load_settings(
            flags={
                "registry": {"url": self._url},
                "subscriptions": str(path),
                "source": source,
                "daemon": {"ledger_interval_s": 0.05},
                "lease": {"ttl_s": 1.0},
                "server": {"port": 0},
                "lake": {"warehouse": str(self._directory / "warehouse")},
                **flags,
            }
        )


class InMemoryRecorder(RecordingSubscriber):
    durable = False  # a successor begins with nothing, so it is refreshed


def record(settings: object, context: object) -> RecordingSubscriber:
    return InMemoryRecorder(*TABLES)


@pytest.fixture
def deployment(registry_url: str, tmp_path: Path, stream: Stream) -> Deployment:
    return Deployment(registry_url, tmp_path, stream)


@pytest.fixture
async def store(opened: OpenStore, registry_url: str) -> MetadataStore:
    return await opened(registry_url)


async def test_a_component_in_another_daemon_has_the_registrys_rows(
    deployment: Deployment, start: Start, store: MetadataStore
) -> None:
    await store.create_topic("before", 2)
    leader = await start(deployment.leader())
    follower = await start(deployment.follower())
    await leader.live()
    await follower.live()
    recorder = follower.subscribers["audit"]
    assert isinstance(recorder, RecordingSubscriber)
    for number in range(20):
        await store.create_topic(f"t{number}", 2)
    await store.update_topic_config("t3", {"k": "v"})
    await store.delete_topic("t4")
    await follower.agree(store)
    assert recorder.refreshes == 1
    assert readiness(follower.daemon, 20.0).ready

    await leader.stop()
    again = await start(deployment.leader())
    await again.live()
    await store.create_topic("after", 1)
    await follower.agree(store)
    assert recorder.refreshes == 1, "the leader's last heartbeat said where its successor resumes"

    again.lane(next(iter(again.subscribers))).refresh("test")
    await eventually(lambda: recorder.refreshes > 1, "a refresh that follows the leader's")
    await store.create_topic("last", 1)
    await follower.agree(store)


async def test_a_follower_that_was_killed(deployment: Deployment, start: Start, store: MetadataStore) -> None:
    leader = await start(deployment.leader())
    follower = await start(deployment.follower())
    await leader.live()
    await follower.live()
    await store.create_topic("a", 2)
    await follower.agree(store)
    await follower.kill()
    await store.create_topic("b", 2)
    successor = await start(deployment.follower())
    await successor.agree(store)
    other = await start(deployment.follower("another"))
    await store.create_topic("c", 2)
    await other.agree(store)
    await successor.agree(store)


async def checked(settings: Settings) -> dict[str, PreflightResult]:
    return {result.check: result for result in await preflight(settings)}


on_one_database = pytest.mark.parametrize("registry_url", ["sqlite"], indirect=True)


@on_one_database
async def test_preflight(deployment: Deployment, start: Start, store: MetadataStore) -> None:
    leader = await start(deployment.leader())
    await leader.live()
    results = await checked(deployment.follower())
    names = ["group", "broker", "leader", "tables of the stream", "registry of the stream"]
    assert {name: results[name].verdict for name in names} == dict.fromkeys(names, Verdict.OK)
    assert "wal_level" not in results
    results = await checked(deployment.follower("astha"))
    assert results["group"].verdict is Verdict.PROBLEM
    with pytest.raises(ConfigError, match="needs a group of its own"):
        await assemble(deployment.follower("astha"), SystemLoopClock())
    await leader.stop()
    results = await checked(deployment.follower())
    assert results["broker"].verdict is Verdict.OK
    assert results["leader"].verdict is Verdict.WARNING
    narrow = await start(deployment.leader(TABLES[:2]))
    await narrow.live()
    results = await checked(deployment.follower())
    assert "consumer_groups are not sent" in results["tables of the stream"].detail


@on_one_database
async def test_preflight_of_a_broker_that_is_not_there(deployment: Deployment) -> None:
    settings = deployment.follower(kafka={"connect_timeout_s": 1})
    url = "kafka://127.0.0.1:1/t" if "kafka" in str(settings.source.address) else "mqtt://127.0.0.1:1/t"
    away = settings.model_copy(update={"source": settings.source.model_copy(update={"url": _secret(url)})})
    assert (await checked(away))["broker"].verdict is Verdict.UNKNOWN


def _secret(url: str) -> Any:
    from pydantic import SecretStr

    return SecretStr(url)
