"""The Iceberg updater's progress, from the ledger and the daemon's lease: whether it is worth waiting for."""

from __future__ import annotations

import msgspec

from components.lib.ledger_entry import ledger_entry
from registry.clock import Clock
from registry.contract import MetadataStore
from registry.models import LedgerEntry
from registry.position import Position

COMPONENT = "iceberg_updater"
_LIVE, _PAUSED = "live", "paused"
_LATE_MS = 5_000
"""A lease that expired within this time may still be renewed, or be taken over by another daemon."""


class UpdaterProgress(msgspec.Struct, frozen=True):
    """`entry` is None if no daemon on this registry has ever had the updater. `daemon`: whether one runs."""

    entry: LedgerEntry | None
    daemon: bool
    registry_position: Position

    def has_passed(self, position: Position) -> bool:
        """Whether it has acknowledged everything up to `position`."""
        entry = self.entry
        return (
            entry is not None and not entry.refresh_owed and entry.position is not None and entry.position >= position
        )

    @property
    def is_worth_waiting_for(self) -> bool:
        """An open circuit recovers and a new component starts; a paused or missing one does not make progress."""
        return self.daemon and self.entry is not None and self.entry.state != _PAUSED

    def __str__(self) -> str:
        entry = self.entry
        if entry is None:
            return f"the ledger has no {COMPONENT}"
        state = (
            f"{COMPONENT} is {entry.state}" if self.daemon else f"{COMPONENT} was {entry.state}, and no daemon runs now"
        )
        owes = ", owes a refresh" if entry.refresh_owed else ""
        reason = f" ({entry.reason})" if entry.reason else ""
        at = "" if entry.position is None else f", at position {entry.position} of {self.registry_position}"
        return f"{state}{owes}{reason}{at}"

    @property
    def is_live(self) -> bool:
        return self.daemon and self.entry is not None and self.entry.state == _LIVE and not self.entry.refresh_owed

    @property
    def is_paused(self) -> bool:
        return self.entry is not None and self.entry.state == _PAUSED


async def read_updater(store: MetadataStore, clock: Clock) -> UpdaterProgress:
    """Finds the updater in any group of daemons."""
    entry = await ledger_entry(store, COMPONENT)
    lease = None if entry is None else await store.get_daemon_lease(entry.group)
    daemon = lease is not None and lease.expires_at > clock.now_ms() - _LATE_MS
    return UpdaterProgress(entry, daemon, await store.position())
