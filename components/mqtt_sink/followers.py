"""Heartbeats for followers: they say that nothing is missing, and that the registry shows everything that was sent."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from astha.subscribers import Backoff, DeliveryError, LoopClock, Problem, RegistryError
from astha.tasks import raise_if_cancelled
from components.lib.transaction_stream import TransactionStream
from components.mqtt_sink.errors import BrokerUnusable
from components.mqtt_sink.link import Batch
from components.mqtt_sink.messages import record_publication
from components.mqtt_sink.session import Session
from components.mqtt_sink.topics import Topics

_LAST_BEAT_S = 2.0
_BACKOFF = Backoff(initial_s=1.0, max_s=60.0)


class Heartbeats:
    def __init__(self, clock: LoopClock, session: Session, topics: Topics, interval_s: float) -> None:
        self._clock = clock
        self._session = session
        self._topics = topics
        self._interval_s = interval_s
        self._problem: Problem | None = None
        self.messages = 0

    async def run(self, stream: TransactionStream) -> None:
        """No error ends it: another beat follows, after a while if the broker refuses them or the registry fails."""
        failures = 0
        while True:
            raise_if_cancelled()
            await self._clock.sleep(self._interval_s if not failures else _BACKOFF.wait_s(failures, self._clock))
            try:
                await self._beat(stream)
            except BrokerUnusable:
                continue  # the session connects again
            except (DeliveryError, RegistryError) as error:
                failures += 1
                self._note(repr(error))
            else:
                failures = 0

    async def last(self, stream: TransactionStream) -> None:
        """Says how far the stream has come: a successor resumes there."""
        with suppress(TimeoutError, DeliveryError, RegistryError):
            async with asyncio.timeout(_LAST_BEAT_S):
                await self._beat(stream)

    def problems(self) -> list[Problem]:
        return [] if self._problem is None else [self._problem]

    async def _beat(self, stream: TransactionStream) -> None:
        link = self._session.current
        if link is None or link.error is not None:
            return
        message = await stream.heartbeat()
        if message is None:
            return
        batch = Batch(link)
        await link.room(len(message.payload))
        if stream.is_current(message):
            batch.send(record_publication(self._topics, message, stream.epoch))
            await batch.acknowledged()
            self.messages += 1
        self._problem = None

    def _note(self, reason: str) -> None:
        known = self._problem
        since = self._clock.now_ms() if known is None else known.since
        attempts = 1 if known is None else known.attempts + 1
        self._problem = Problem("heartbeats for followers", reason, since, attempts)
