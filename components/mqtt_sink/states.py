"""Retained messages: the state of the daemon, and of each of its components."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

import msgspec
from aiomqtt import Will

from astha.subscribers import ComponentContext, ComponentState, DeliveryError, Problem
from astha.tasks import raise_if_cancelled
from components.mqtt_sink.errors import PublishRefused
from components.mqtt_sink.link import Batch, Link
from components.mqtt_sink.messages import retained_publication
from components.mqtt_sink.session import Session
from components.mqtt_sink.topics import Topics

_CHECK_S = 1.0
_REPEAT_S = 30.0
"""All states are published again after this time: a former leader's last will, or its end, may have replaced them."""

_REFUSED_S = 300.0
"""A topic that the broker refuses is left out for so long: some brokers also close the connection of such a message."""

_FAREWELL_S = 2.0


class DaemonState:
    """The daemon on ``PREFIX/daemons/GROUP``: online, or offline by its last will."""

    def __init__(self, context: ComponentContext, topics: Topics, client_id: str) -> None:
        self.topic = topics.daemon(context.group)
        self._content = {"group": context.group, "host": socket.gethostname(), "client_id": client_id}

    def content(self, state: str, epoch: int | None = None) -> dict[str, object]:
        return {"state": state, **self._content, "epoch": epoch}

    def will(self) -> Will:
        message = retained_publication(self.topic, self.content("offline"))
        return Will(message.topic, message.payload, qos=1, retain=True, properties=None)


class StateReporter:
    """Publishes what has changed, once a second."""

    def __init__(self, context: ComponentContext, session: Session, topics: Topics, daemon: DaemonState) -> None:
        self._context = context
        self._session = session
        self._topics = topics
        self._daemon = daemon
        self._host = socket.gethostname()
        self._published: dict[str, Mapping[str, object]] = {}
        self._link: Link | None = None
        self._complete_at = 0.0
        self._refused: dict[str, float] = {}  # until when
        self._problem: Problem | None = None
        self.epoch: int | None = None
        self.messages = 0

    async def run(self) -> None:
        while True:
            raise_if_cancelled()
            link = self._session.current
            if link is not None and link.error is None:
                await self._report(link)
            await self._context.clock.sleep(_CHECK_S)

    def problems(self) -> list[Problem]:
        return [] if self._problem is None else [self._problem]

    async def farewell(self) -> None:
        """Marks everything as stopped, if the broker responds soon."""
        link = self._session.current
        if link is None or link.error is not None:
            return
        wanted = {
            self._topics.component(state.component): self._component_content(state, "stopped")
            for state in self._context.component_states()
        }
        wanted[self._daemon.topic] = self._daemon.content("offline", self.epoch)
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._publish(link, wanted)
        except (DeliveryError, TimeoutError):
            pass  # the broker publishes the last will

    async def _report(self, link: Link) -> None:
        now = self._context.clock.monotonic()
        if link is not self._link or now - self._complete_at >= _REPEAT_S:
            self._published.clear()
            self._link, self._complete_at = link, now
        wanted: dict[str, Mapping[str, object]] = {self._daemon.topic: self._daemon.content("online", self.epoch)}
        for state in self._context.component_states():
            wanted[self._topics.component(state.component)] = self._component_content(state, state.state)
        changed = {topic: content for topic, content in wanted.items() if self._published.get(topic) != content}
        try:
            await self._publish(link, changed)
        except PublishRefused as error:
            self._refused[error.topic] = now + _REFUSED_S
            self._note(str(error))
        except DeliveryError:
            pass  # the connection is lost: the next one gets everything
        else:
            self._published |= changed
            if not self._refused:
                self._problem = None

    async def _publish(self, link: Link, wanted: Mapping[str, Mapping[str, object]]) -> None:
        now = self._context.clock.monotonic()
        self._refused = {topic: until for topic, until in self._refused.items() if until > now}
        batch = Batch(link)
        for topic, content in wanted.items():
            if topic not in self._refused:
                await batch.publish(retained_publication(topic, content))
                self.messages += 1
        await batch.acknowledged()

    def _component_content(self, state: ComponentState, shown: str) -> Mapping[str, object]:
        return {**msgspec.structs.asdict(state), "state": shown, "group": self._context.group, "host": self._host}

    def _note(self, reason: str) -> None:
        known = self._problem
        since = self._context.clock.now_ms() if known is None else known.since
        attempts = 1 if known is None else known.attempts + 1
        self._problem = Problem("retained states", reason, since, attempts)
