"""From a URL to a store whose schema is the one this code speaks."""

from __future__ import annotations

import asyncio
from functools import partial

from registry.clock import Clock, SystemClock
from registry.contract import MetadataStore
from registry.engines import StoreSettings, async_engine, parse_url
from registry.migration import status
from registry.stores.postgres import PostgresStore
from registry.stores.sqlite import SqliteStore


async def open_store(url: str, *, settings: StoreSettings | None = None, clock: Clock | None = None) -> MetadataStore:
    """SchemaMismatch if the database is not migrated to this version, Unavailable if it does not answer."""
    parsed, settings, clock = parse_url(url), settings or StoreSettings(), clock or SystemClock()
    await require_schema(url, settings)
    if parsed.drivername == "sqlite":
        return SqliteStore(partial(async_engine, parsed, settings), clock)
    return PostgresStore(async_engine(parsed, settings), clock)


async def require_schema(url: str, settings: StoreSettings) -> None:
    """SchemaMismatch or Unavailable, as `open_store`."""
    (await asyncio.to_thread(status, url, settings)).require_current()
