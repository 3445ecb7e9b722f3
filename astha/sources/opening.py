"""From a registry's URL to the source that tails it."""

from __future__ import annotations

from astha.clock import LoopClock
from astha.sources.contract import Source
from astha.sources.limits import TransactionLimits
from astha.sources.postgres.source import PostgresSource, PostgresSourceSettings
from astha.sources.sqlite import SqliteSource
from registry.contract import MetadataStore
from registry.engines import parse_url


def open_source(url: str, store: MetadataStore, settings: PostgresSourceSettings, clock: LoopClock) -> Source:
    """Both remember where they are in the database itself: in a slot, or by what is left of the change log."""
    parsed = parse_url(url)
    if parsed.drivername == "postgresql":
        return PostgresSource(parsed.render_as_string(hide_password=False), store, settings, clock)
    limits = TransactionLimits(settings.transaction_limit_events, settings.transaction_limit_bytes)
    return SqliteSource(url, store, limits=limits)
