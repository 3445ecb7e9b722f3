"""Questions to the daemon, so few that asking never slows it.

Any number of callers who ask the same thing share one question. An answer is always newer than the question of
whoever gets it, but for metrics, which may be a second old. Between two questions of a kind passes a while: at least
fifty times as long as the daemon's loop took for the last one, so that a kind never costs it more than 2 percent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from astha.listener.link import Ask, Figures, Reply

_PACE_S = {"readiness": 0.05, "routes": 0.05, "status": 0.1, "text": 1.0, "openmetrics": 1.0}
_KEPT_S = {"text": 1.0, "openmetrics": 1.0}
_SHARE = 50


class DaemonSilent(Exception):
    """The daemon's loop did not answer in time."""


class Questions:
    def __init__(self, send: Callable[[msgspec.Struct], None], figures: Callable[[], Figures]) -> None:
        self._send = send
        self._figures = figures
        self._number = 0
        self._open: dict[int, asyncio.Future[Reply]] = {}
        self._kinds: dict[str, _Kind] = {}

    async def ask(self, what: str, timeout_s: float) -> Reply:
        """DaemonSilent if it takes longer."""
        kind = self._kinds.get(what)
        if kind is None:
            kind = self._kinds[what] = _Kind(lambda: self.act(what, None, None), _PACE_S[what], _KEPT_S.get(what, 0.0))
        try:
            async with asyncio.timeout(timeout_s):
                return await kind.answer()
        except TimeoutError:
            raise DaemonSilent from None

    async def act(self, what: str, component: str | None, peer: str | None) -> Reply:
        """Its own question, shared with no other caller."""
        self._number += 1
        number = self._number
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._open[number] = answer
        try:
            self._send(Ask(number=number, what=what, component=component, peer=peer, figures=self._figures()))
            return await answer
        finally:
            del self._open[number]

    def answered(self, reply: Reply) -> None:
        waiting = self._open.get(reply.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)


class _Kind:
    def __init__(self, question: Callable[[], Awaitable[Reply]], pace_s: float, kept_s: float) -> None:
        self._question = question
        self._pace_s = pace_s
        self._kept_s = kept_s
        self._kept: Reply | None = None
        self._asked = float("-inf")  # when the last question was sent
        self._rest_s = 0.0
        self._waiting: asyncio.Task[Reply] | None = None  # a question that is not sent yet: callers may join it
        self._under_way: asyncio.Task[Reply] | None = None

    async def answer(self) -> Reply:
        kept_s = max(self._kept_s, self._rest_s) if self._kept_s else 0.0
        if self._kept is not None and time.monotonic() - self._asked < kept_s:
            return self._kept
        joined = self._under_way if self._kept_s and self._under_way is not None else self._waiting
        if joined is None:
            joined = self._waiting = asyncio.create_task(self._ask(self._under_way))
        return await asyncio.shield(joined)

    async def _ask(self, before: asyncio.Task[Reply] | None) -> Reply:
        if before is not None:
            await asyncio.wait({before})
        rest = self._asked + max(self._pace_s, self._rest_s) - time.monotonic()
        if rest > 0:
            await asyncio.sleep(rest)
        self._under_way, self._waiting = self._waiting, None
        self._asked = time.monotonic()
        try:
            reply = await self._question()
        finally:
            self._under_way = None
        self._rest_s = reply.took_s * _SHARE
        self._kept = reply if self._kept_s and reply.status == 200 else None
        return reply
