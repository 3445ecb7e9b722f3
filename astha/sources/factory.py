"""Opens the source or the live source for a registry's URL."""

from __future__ import annotations

from astha.clock import LoopClock
from astha.settings.registry import conninfo_of
from astha.sources.contract import LiveSource, Source
from astha.sources.limits import TransactionLimits
from astha.sources.postgres.live_source import PostgresLiveSource
from astha.sources.postgres.source import PostgresSource, PostgresSourceSettings
from astha.sources.sqlite import SqliteLiveSource, SqliteSource, TailSettings
from registry.contract import MetadataStore
from registry.engines import parse_url


def open_source(
    url: str, store: MetadataStore, settings: PostgresSourceSettings, tail: TailSettings, clock: LoopClock
) -> Source:
    """Both sources keep their position in the database: in a slot, or by trimming the change log."""
    parsed = parse_url(url)
    if parsed.drivername == "postgresql":
        return PostgresSource(conninfo_of(parsed), store, settings, clock)
    limits = TransactionLimits(settings.transaction_limit_events, settings.transaction_limit_bytes)
    return SqliteSource(url, store, limits=limits, settings=tail)


def open_live_source(url: str, settings: PostgresSourceSettings, tail: TailSettings, clock: LoopClock) -> LiveSource:
    """For processes beside the daemon: at most one per free replication slot, on SQLite any number."""
    parsed = parse_url(url)
    if parsed.drivername == "postgresql":
        return PostgresLiveSource(conninfo_of(parsed), settings, clock)
    limits = TransactionLimits(settings.transaction_limit_events, settings.transaction_limit_bytes)
    return SqliteLiveSource(url, limits, tail)
