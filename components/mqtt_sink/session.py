"""Keeps the sink connected: opens a link, and another one when it is lost, with backoff."""

from __future__ import annotations

import asyncio

import structlog
from aiomqtt import Will

from astha.subscribers import BackgroundTasks, Backoff, LoopClock
from astha.tasks import raise_if_cancelled
from components.mqtt_sink.errors import BrokerUnusable
from components.mqtt_sink.link import Link
from components.mqtt_sink.settings import MqttSettings

log = structlog.get_logger(__name__)

_BACKOFF = Backoff(initial_s=0.1, max_s=5.0)
_STABLE_S = 5.0
"""A connection that lasted so long begins the backoff again."""


class Session:
    def __init__(self, settings: MqttSettings, client_id: str, will: Will, clock: LoopClock, component: str) -> None:
        self._settings = settings
        self._client_id = client_id
        self._will = will
        self._clock = clock
        self._component = component
        self._tasks = BackgroundTasks(component, clock)
        self._attempt: asyncio.Future[Link] | None = None  # the link, or the one that is awaited
        self._closing = False
        self._disconnected_at = 0.0
        self.connections = 0
        self.current: Link | None = None
        self.error: BrokerUnusable | None = None

    def start(self) -> None:
        self._closing = False
        self.error = None
        self._disconnected_at = self._clock.monotonic()
        self._tasks.supervise("connection", self._run)

    def require_connection(self, grace_s: float) -> None:
        """Raises BrokerUnusable if there has been no connection for longer than `grace_s`, or for a lasting reason."""
        if self.current is not None and self.current.error is None:
            return
        if self.error is not None and self.error.lasting:
            raise self.error.again()
        if self._clock.monotonic() - self._disconnected_at > grace_s:
            raise BrokerUnusable(str(self.error or f"MQTT broker {self._settings.address} does not respond"))

    async def link(self) -> Link:
        """Returns the link, or waits for the next attempt to connect. Raises BrokerUnusable if it fails, or at once if
        attempts fail for a lasting reason.
        """
        if self.current is not None and self.current.error is None:
            return self.current
        if self.error is not None and self.error.lasting:
            raise self.error.again()
        return await asyncio.shield(self._next_attempt())

    async def stop(self) -> None:
        """Disconnects cleanly, if there is a connection."""
        self._closing = True
        await self._tasks.stop()
        link, self.current = self.current, None
        if link is not None:
            await link.close()

    def _next_attempt(self) -> asyncio.Future[Link]:
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.get_running_loop().create_future()
        return self._attempt

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                link = await Link.connect(self._settings, self._client_id, self._will, self._clock)
            except BrokerUnusable as error:
                failures += 1
                self._failed(error)
                raise_if_cancelled()
                await self._clock.sleep(_BACKOFF.wait_s(failures, self._clock))
                continue
            began = self._clock.monotonic()
            self._connected(link)
            try:
                raise_if_cancelled()
                lost = await link.watch()
            finally:
                if not self._closing:
                    self.current = None
                    link.fail(BrokerUnusable(f"MQTT broker {self._settings.address}: the connection was given up"))
            self._disconnected_at = self._clock.monotonic()
            failures = 0 if self._disconnected_at - began > _STABLE_S else failures + 1
            self._failed(lost)
            await self._clock.sleep(_BACKOFF.wait_s(failures, self._clock))

    def _connected(self, link: Link) -> None:
        log.info("connected to the MQTT broker", component=self._component, broker=self._settings.address)
        self.connections += 1
        self.current, self.error = link, None
        self._next_attempt().set_result(link)

    def _failed(self, error: BrokerUnusable) -> None:
        if str(error) != str(self.error):
            log.warning("no connection to the MQTT broker", component=self._component, error=str(error))
        self.error = error
        attempt = self._next_attempt()
        attempt.set_exception(error)
        attempt.exception()  # marks it as retrieved
