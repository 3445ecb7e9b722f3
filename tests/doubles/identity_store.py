"""A store with the few parts that a sink for followers uses: identities, and snapshots' visibility."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import cast

from registry import validation
from registry.contract import ConsistentRead
from registry.models import SourceIdentity
from registry.position import SnapshotVisibility, XidVisibility


class IdentityStore:
    """Snapshots have the given visibility: at first, they contain every transaction with a small number."""

    def __init__(self) -> None:
        self.identities: dict[str, str] = {}
        self.visibility: SnapshotVisibility = XidVisibility(1_000_000, frozenset())
        self.reads = 0

    async def ensure_source_identity(self, name: str, identity: str) -> SourceIdentity:
        validation.name("name", name)
        return SourceIdentity(name, self.identities.setdefault(name, identity), 0)

    async def record_source_identity(self, name: str, identity: str) -> None:
        self.identities[name] = identity

    @asynccontextmanager
    async def consistent_read(self, tables: Iterable[str] = ()) -> AsyncIterator[ConsistentRead]:
        self.reads += 1
        yield cast("ConsistentRead", self)
