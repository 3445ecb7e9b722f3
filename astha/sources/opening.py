"""From a registry's URL to the source that tails it."""

from __future__ import annotations

from astha.clock import LoopClock
from astha.sources.contract import Source
from astha.sources.limits import TransactionLimits
from astha.sources.postgres.source import PostgresSource, PostgresSourceSettings
from astha.sources.sqlite import SqliteSource
from registry.contract import MetadataStore
from registry.engines import parse_url
from registry.position import Position


async def open_source(url: str, store: MetadataStore, settings: PostgresSourceSettings, clock: LoopClock) -> Source:
    """PostgreSQL remembers in its slot where we are; for SQLite the ledger does."""
    parsed = parse_url(url)
    if parsed.drivername == "postgresql":
        return PostgresSource(parsed.render_as_string(hide_password=False), store, settings, clock)
    limits = TransactionLimits(settings.transaction_limit_events, settings.transaction_limit_bytes)
    return SqliteSource(url, acknowledged=await _held_position(store), limits=limits)


async def _held_position(store: MetadataStore) -> Position:
    """The lowest position that a component goes on from; if none does, whoever comes refreshes, so: now."""
    positions = [entry.position for entry in await store.read_ledger() if not entry.refresh_owed]
    held = [Position(position) for position in positions if position is not None]
    return min(held) if held else await store.position()
