"""A sink on a real broker, over a registry in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from astha.testing import FakeRegistry, deliver
from components.kafka_sink import create
from components.kafka_sink.subscriber import KafkaSink
from registry.contract import ConsistentRead, MetadataStore
from registry.models import LakeTable, Row, SourceIdentity, TableFile, Topic
from registry.position import Position
from tests.kafka_reader import materialised
from tests.servers.kafka import KafkaBroker

TABLES = frozenset({"topics", "tables", "table_files"})
KINDS: tuple[type[Row], ...] = (Topic, LakeTable, TableFile)


class FakeStore:
    """The part of a store that the sink uses."""

    def __init__(self, registry: FakeRegistry) -> None:
        self.registry = registry
        self.identities: dict[str, str] = {}

    @asynccontextmanager
    async def consistent_read(self, tables: Iterable[str] = ()) -> AsyncIterator[ConsistentRead]:
        yield self.registry.snapshot()

    async def get_source_identity(self, name: str) -> SourceIdentity | None:
        return SourceIdentity(name, self.identities[name], 0) if name in self.identities else None

    async def record_source_identity(self, name: str, identity: str) -> None:
        self.identities[name] = identity

    async def ensure_source_identity(self, name: str, identity: str) -> SourceIdentity:
        return SourceIdentity(name, self.identities.setdefault(name, identity), 0)


class Harness:
    def __init__(self, address: str, prefix: str) -> None:
        self.address = address
        self.prefix = prefix
        self.registry = FakeRegistry()
        self.store = FakeStore(self.registry)

    def sink(self, **settings: Any) -> KafkaSink:
        context = ComponentContext(
            cast("MetadataStore", self.store), SystemLoopClock(), SecretStr("sqlite:///registry.db"), LakeSettings(),
            component="kafka_sink", tables=TABLES,
        )  # fmt: skip
        chosen = {"bootstrap_servers": self.address, "prefix": self.prefix, **settings}
        return create(chosen, context)

    @asynccontextmanager
    async def started(self, epoch: int = 1, **settings: Any) -> AsyncIterator[KafkaSink]:
        sink = self.sink(**settings)
        try:
            await sink.start()
            sink.resume_at(self.registry.last, epoch)
            yield sink
        finally:
            await sink.stop()

    async def refresh(self, sink: KafkaSink, epoch: int = 1) -> None:
        sink.resume_at(Position(self.registry.last), epoch)
        await sink.on_refresh(self.registry.snapshot())

    async def commit(self, sink: KafkaSink, *rows: Row, removed: tuple[Row, ...] = ()) -> None:
        await deliver(sink, self.registry.commit(*rows, removed=removed))

    def in_registry(self) -> dict[str, dict[tuple[object, ...], Row]]:
        return {kind.table: dict(self.registry.rows[kind]) for kind in KINDS}

    def in_topics(self, broker: KafkaBroker) -> dict[str, dict[tuple[object, ...], Row]]:
        return materialised(broker.address, self.prefix, [kind.table for kind in KINDS])
