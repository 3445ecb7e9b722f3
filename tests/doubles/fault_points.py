"""Faults at any call to registry or storage, once or from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Any, TypeVar

from components.lib.lake.storage.objects import Objects, StorageError, StorageRefused, StorageUnavailable
from components.lib.lake.storage.output_streams import Sink
from components.lib.lake.storage.roots import Roots
from registry.contract import MetadataStore
from registry.errors import Unavailable
from registry.forwarding import ForwardingStore

T = TypeVar("T")


class Fault(Enum):
    CALL_LOST = "the call never arrives"
    ANSWER_LOST = "it happens, but the answer is lost"
    REFUSED = "storage says no"
    CANCELLED = "the caller is cancelled just before"
    CANCELLED_AFTER = "the caller is cancelled just after"
    DOWN = "nothing answers from here on"


class FaultPoints:
    """Counts calls; the fault happens at call number ``at``. ``names`` lists the calls."""

    def __init__(self, at: int = -1, fault: Fault | None = None) -> None:
        self._at = at
        self._fault = fault
        self.names: list[str] = []
        self.victim: asyncio.Task[Any] | None = None
        self.down = False

    async def reach(self, name: str, call: Callable[[], Awaitable[T]], lost: Callable[[str], Exception]) -> T:
        here = len(self.names) == self._at
        self.names.append(name)
        fault = self._fault if here else None
        if fault is Fault.DOWN:
            self.down = True
        if self.down or fault is Fault.CALL_LOST:
            raise lost(f"{name}: lost")
        if fault is Fault.REFUSED:
            raise StorageRefused(f"{name}: refused")
        if fault is Fault.CANCELLED and self.victim is not None:
            self.victim.cancel()
        answer = await call()
        if fault is Fault.ANSWER_LOST:
            raise lost(f"{name}: its answer was lost")
        if fault is Fault.CANCELLED_AFTER and self.victim is not None:
            self.victim.cancel()
        return answer


VERBS = (
    "get_table", "get_table_by_id", "get_table_metadata", "record_intents", "renew_intents", "complete_intents",
    "register_files", "get_files", "get_insert",
    "add_segments", "get_object_segments", "get_partitions", "get_producer_sequences",
    "register_agent", "deregister_agent", "heartbeat", "acquire_partition_leases",
    "release_partition_lease", "get_partition_lease",
)  # fmt: skip


class FaultyRegistry(ForwardingStore):
    """Wraps the verbs that inserts and appends use; others pass through."""

    def __init__(self, inner: MetadataStore, points: FaultPoints) -> None:
        super().__init__(inner)
        self._points = points
        for verb in VERBS:
            setattr(self, verb, self._faulty(verb, getattr(inner, verb)))

    def _faulty(self, name: str, verb: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def call(*args: Any, **options: Any) -> T:
            return await self._points.reach(name, lambda: verb(*args, **options), Unavailable)

        return call


class FaultyObjects(Objects):
    def __init__(self, inner: Objects, points: FaultPoints) -> None:
        self._inner = inner
        self._points = points

    async def write(self, uri: str, fill: Callable[[Sink], T]) -> T:
        return await self._points.reach("write", lambda: self._inner.write(uri, fill), StorageUnavailable)

    async def put(self, uri: str, data: bytes) -> None:
        await self._points.reach("write", lambda: self._inner.put(uri, data), StorageUnavailable)

    @property
    def roots(self) -> Roots:
        return self._inner.roots

    async def delete_many(self, uris: Iterable[str], *, roots: Roots | None = None) -> None:
        await self._points.reach("delete_many", lambda: self._inner.delete_many(uris, roots=roots), StorageUnavailable)


LOST_ERRORS = (Unavailable, StorageError)
