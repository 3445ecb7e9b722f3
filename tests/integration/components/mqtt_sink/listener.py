"""A subscriber of topics, with no code of the sink, and sinks for tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, cast

import aiomqtt
import msgspec

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext, ComponentState, MetadataStore, Position
from astha.testing import make_context
from components.mqtt_sink import create
from components.mqtt_sink.subscriber import MqttSink
from tests.doubles.identity_store import IdentityStore
from tests.servers.mosquitto import Mosquitto
from tests.waiting import eventually

TABLES = frozenset({"topics", "partitions"})


class Received(msgspec.Struct):
    topic: str
    payload: bytes
    retain: bool
    content_type: str | None
    properties: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.payload)


class Listener:
    """Receives at QoS 1, from the time it is entered."""

    def __init__(
        self, broker: Mosquitto, *topics: str, username: str | None = None, password: str | None = None
    ) -> None:
        self._client = aiomqtt.Client(
            "127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5, username=username, password=password
        )
        self._topics = topics
        self._task: asyncio.Task[None] | None = None
        self.received: list[Received] = []

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        for topic in self._topics:
            await self._client.subscribe(topic, qos=1)
        self._task = asyncio.create_task(self._collect())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(aiomqtt.MqttError):  # the broker may be gone
            await self._client.__aexit__(None, None, None)

    def on(self, topic: str) -> list[Received]:
        """Returns what has arrived at topics that match the filter."""
        return [message for message in self.received if aiomqtt.Topic(message.topic).matches(topic)]

    def last(self, topic: str) -> Received | None:
        found = self.on(topic)
        return found[-1] if found else None

    async def until(self, topic: str, count: int) -> list[Received]:
        await eventually(lambda: len(self.on(topic)) >= count, f"{count} messages at {topic}: {self.received[-3:]}")
        return self.on(topic)

    async def _collect(self) -> None:
        async for message in self._client.messages:
            properties = message.properties
            assert isinstance(message.payload, bytes)
            self.received.append(
                Received(
                    str(message.topic),
                    message.payload,
                    bool(message.retain),
                    getattr(properties, "ContentType", None),
                    dict(getattr(properties, "UserProperty", [])),
                )
            )


def states() -> Iterator[ComponentState]:
    yield ComponentState("mqtt_sink", "live", None, Position(7))
    yield ComponentState("other", "broken", "it failed", Position(5))


def sink_context(store: IdentityStore | None = None, component: str = "mqtt_sink") -> ComponentContext:
    return msgspec.structs.replace(
        make_context(cast("MetadataStore", store or IdentityStore())),
        clock=SystemLoopClock(),
        component=component,
        tables=TABLES,
        group="leaders",
        component_states=lambda: list(states()),
    )


class Sinks:
    """Starts sinks as the daemon does, and stops them."""

    def __init__(self) -> None:
        self._started: list[MqttSink] = []
        self.context = sink_context()

    async def start(self, url: str, prefix: str, resume_at: int = 0, epoch: int = 7, **settings: Any) -> MqttSink:
        sink = create({"url": url, "prefix": prefix, "timeout_s": 2.0, **settings}, self.context)
        self._started.append(sink)
        await sink.start()
        sink.resume_at(Position(resume_at), epoch)
        return sink

    async def stop(self) -> None:
        for sink in self._started:
            await sink.stop()
