"""Opens stores by URL, after checking that this code can use the schema."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from registry import cockroachdb
from registry.clock import Clock, SystemClock
from registry.contract import MetadataStore
from registry.engines import StoreSettings, async_engine, parse_url
from registry.schema_status import status
from registry.stores.write_lock import WriteLock

_RESERVED = {"pool_size": 2, "pool_overflow": 1}


class Stores(msgspec.Struct, frozen=True):
    """``reserved`` has its own connections, for few urgent calls: it never waits for the calls of ``main``."""

    main: MetadataStore
    reserved: MetadataStore

    async def close(self) -> None:
        try:
            await self.reserved.close()
        finally:
            await self.main.close()


async def open_store(url: str, *, settings: StoreSettings | None = None, clock: Clock | None = None) -> MetadataStore:
    """Raises SchemaMismatch if this version can't use the database's schema, Unavailable if it can't be reached."""
    settings = settings or StoreSettings()
    await require_schema(url, settings)
    return _store(url, settings, clock or SystemClock(), WriteLock())


async def open_stores(url: str, *, settings: StoreSettings | None = None, clock: Clock | None = None) -> Stores:
    """Raises what `open_store` raises. The stores connect at first use."""
    settings, clock, lock = settings or StoreSettings(), clock or SystemClock(), WriteLock()
    await require_schema(url, settings)
    few = msgspec.structs.replace(settings, **_RESERVED)
    return Stores(_store(url, settings, clock, lock), _store(url, few, clock, lock, urgent=True))


def _store(url: str, settings: StoreSettings, clock: Clock, lock: WriteLock, *, urgent: bool = False) -> MetadataStore:
    """Imports one backend only: the other's takes CPU at every start."""
    parsed = parse_url(url)
    if parsed.drivername == "dynamodb":
        from registry.stores.dynamodb.opening import make_store

        return make_store(url, settings, clock, urgent=urgent)
    if parsed.drivername == "sqlite":
        from registry.stores.sqlite import SqliteStore

        return SqliteStore(partial(async_engine, parsed, settings), clock, lock, urgent=urgent)
    if parsed.drivername == cockroachdb.NAME:
        from registry.stores.cockroachdb import CockroachStore
        from registry.stores.cockroachdb.retries import Retries

        retries = Retries(within_s=settings.busy_timeout_s)
        return CockroachStore(async_engine(parsed, settings), clock, retries=retries)
    from registry.stores.postgres import PostgresStore

    return PostgresStore(async_engine(parsed, settings), clock)


async def require_schema(url: str, settings: StoreSettings) -> None:
    """Raises what `open_store` raises."""
    (await asyncio.to_thread(status, url, settings)).require_usable()
