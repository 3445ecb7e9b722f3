"""A component's entry in the ledger, whichever group of daemons runs it."""

from __future__ import annotations

from registry.contract import MetadataStore
from registry.models import LedgerEntry


async def ledger_entry(store: MetadataStore, component: str) -> LedgerEntry | None:
    """Returns the newest entry: a component that moved to another group leaves an old one behind."""
    entries = [entry for entry in await store.read_ledger() if entry.component == component]
    return max(entries, key=lambda entry: entry.updated_at, default=None)
