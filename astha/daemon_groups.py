"""All groups of daemons on a registry, as the registry knows them: for `astha status --all` and `astha check`."""

from __future__ import annotations

import msgspec

from registry.clock import Clock
from registry.contract import MetadataStore
from registry.json_text import parse_json_as
from registry.models import DaemonRole, LedgerEntry, RunningDaemon
from registry.position import Position

_GONE_AFTER_MS = 30_000
"""A daemon reports itself every ten seconds."""


class DaemonReport(msgspec.Struct, frozen=True):
    holder: str
    role: DaemonRole
    host: str
    pid: int
    source: str
    components: list[str]
    version: str
    started_at: int
    seen_at: int
    seen_s: float  # ago
    gone: bool


class ComponentReport(msgspec.Struct, frozen=True):
    """The ledger's entry. `lag` is counted in positions, behind the furthest position that the registry knows."""

    name: str
    running: bool  # by a daemon of the group that is not gone
    state: str
    reason: str | None
    refresh_owed: bool
    position: int | None
    lag: int | None
    updated_at: int


class GroupReport(msgspec.Struct, frozen=True):
    name: str
    daemons: list[DaemonReport]
    components: list[ComponentReport]

    @property
    def running(self) -> set[str]:
        """The components of daemons that are not gone."""
        return {name for daemon in self.daemons if not daemon.gone for name in daemon.components}


async def read_groups(store: MetadataStore, clock: Clock) -> list[GroupReport]:
    """Returns every group that has a daemon or a row in the ledger, sorted by name."""
    daemons, entries = await store.list_daemons(), await store.read_ledger()
    furthest = max([await store.position(), *(Position(entry.position or 0) for entry in entries)])
    now = clock.now_ms()
    groups: list[GroupReport] = []
    for name in sorted({row.group for row in daemons} | {entry.group for entry in entries}):
        group = GroupReport(name, [_daemon(row, now) for row in daemons if row.group == name], [])
        own = [entry for entry in entries if entry.group == name]
        group.components.extend(_component(entry, furthest, entry.component in group.running) for entry in own)
        groups.append(group)
    return groups


def _daemon(row: RunningDaemon, now: int) -> DaemonReport:
    silent_ms = max(0, now - row.seen_at)
    return DaemonReport(
        holder=row.holder,
        role=row.role,
        host=row.host,
        pid=row.pid,
        source=row.source,
        components=parse_json_as(row.components, list[str]),
        version=row.version,
        started_at=row.started_at,
        seen_at=row.seen_at,
        seen_s=round(silent_ms / 1000, 1),
        gone=silent_ms > _GONE_AFTER_MS,
    )


def _component(entry: LedgerEntry, furthest: Position, running: bool) -> ComponentReport:
    return ComponentReport(
        name=entry.component,
        running=running,
        state=entry.state,
        reason=entry.reason,
        refresh_owed=entry.refresh_owed,
        position=entry.position,
        lag=None if entry.position is None else furthest - entry.position,
        updated_at=entry.updated_at,
    )
