"""What all verbs use: reads that see no half of a commit, and transactions that are repeated until one is committed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from registry.clock import Clock, UnchangedTimer
from registry.errors import RegistryError, SchemaMismatch, Unavailable
from registry.models import Row
from registry.stores.dynamodb.client import DynamoClient
from registry.stores.dynamodb.reader import Reader
from registry.stores.dynamodb.state import REGISTRY, VERSION, Domain, State
from registry.stores.dynamodb.transaction import Transaction, apply
from registry.stores.write_lock import WriteLock

R = TypeVar("R", bound=Row)
T = TypeVar("T")

_READ_ATTEMPTS = 30
_LONGEST_BACKOFF_S = 0.5
_LOOK_S = 0.05
_DEAD_LOCK_S = 30.0
"""After this time without a sign of life, the lock of a bulk load is broken."""


class DynamoBase:
    def __init__(
        self, client: DynamoClient, clock: Clock, *, busy_timeout_s: float = 30.0, urgent: bool = False
    ) -> None:
        """``urgent`` is taken for symmetry with other stores: the daemon's state is a domain of its own here."""
        self._client = client
        self._clock = clock
        self._busy_timeout_s = busy_timeout_s
        self._urgent = urgent
        self._write_locks: dict[str, WriteLock] = {}

    @property
    def url(self) -> str:
        return self._client.where

    async def close(self) -> None:
        await self._client.close()

    async def _read(self, read: Callable[[Reader], Awaitable[T]], domain: Domain = REGISTRY) -> T:
        """Calls ``read`` until nothing was committed meanwhile, or it was a single request."""
        for attempt in range(_READ_ATTEMPTS):
            state = await self._settled(domain)
            reader = Reader(self._client)
            failure: RegistryError | None = None
            try:
                result = await read(reader)
            except RegistryError as error:
                failure = error
            if reader.requests <= 1 or await self._state(domain) == state:
                if failure is not None:
                    raise failure
                return result
            await _pause(attempt)
        raise Unavailable(f"{self.url}: commits interrupted this read {_READ_ATTEMPTS} times: try again")

    async def _get(self, kind: type[R], *values: str | int, domain: Domain = REGISTRY) -> R | None:
        return await self._read(lambda reader: reader.get(kind, *values), domain)

    async def _transact(self, change: Callable[[Transaction], Awaitable[T]], domain: Domain = REGISTRY) -> T:
        """Calls ``change`` and commits what it has changed; again, if another transaction was committed meanwhile."""
        lock = self._write_locks.setdefault(domain.name, WriteLock())
        deadline = self._clock_s() + self._busy_timeout_s
        async with lock.hold(urgent=self._urgent):
            attempt = 0
            while True:
                state = await self._settled(domain)
                if state.lock is not None:
                    state = await self._unlocked(domain, deadline)
                transaction = Transaction(self._client, domain, state, self._clock.now_ms())
                try:
                    result = await change(transaction)
                    if await transaction.commit():
                        return result
                except RegistryError as error:
                    if isinstance(error, Unavailable) or await transaction.is_current():
                        raise
                if attempt and self._clock_s() > deadline:
                    raise Unavailable(f"{self.url}: other writers were faster {attempt} times: try again")
                await _pause(attempt)
                attempt += 1

    async def _state(self, domain: Domain) -> State:
        item = await self._client.get(domain.key)
        if item is None:
            raise SchemaMismatch(f"{self.url} holds no registry")
        state = State.of(item)
        if state.version != VERSION:
            raise SchemaMismatch(f"{self.url} has items of version {state.version}, and this code knows {VERSION}")
        return state

    async def _settled(self, domain: Domain) -> State:
        """Returns the state without a pending transaction: applies it, if there is one."""
        while True:
            state = await self._state(domain)
            if state.pending is None:
                return state
            await apply(self._client, domain, state)

    async def _unlocked(self, domain: Domain, deadline: float) -> State:
        """Waits until a bulk load has ended; breaks the lock of one that has died."""
        seen: UnchangedTimer[str | None] = UnchangedTimer(_Monotonic())
        while True:
            state = await self._settled(domain)
            if state.lock is None:
                return state
            if seen.seconds(state.lock) > _DEAD_LOCK_S:
                await Transaction(self._client, domain, state, self._clock.now_ms()).set_lock(None)
            elif self._clock_s() > deadline:
                raise Unavailable(f"{self.url}: a bulk load is filling the registry: wait for its end")
            await asyncio.sleep(_LOOK_S)

    def _clock_s(self) -> float:
        """Monotonic seconds of the event loop: waiting for other writers takes real time."""
        return asyncio.get_running_loop().time()


class _Monotonic:
    def now_ms(self) -> int:
        raise NotImplementedError

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


async def _pause(attempt: int) -> None:
    longest = min(_LONGEST_BACKOFF_S, 0.01 * 2 ** min(attempt, 10))
    await asyncio.sleep(random.uniform(0, longest))  # noqa: S311  (jitter)
