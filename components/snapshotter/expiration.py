"""Expires snapshots by a table's policy, and releases expired ones after their grace period.

Can be interrupted at any point and run in several processes: the next run finds and finishes what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from components.lib.lake.iceberg import IcebergTables
from components.lib.lake.table_lookup import full_name
from components.snapshotter.policy import SnapshotPolicy, read_policy
from components.snapshotter.retention import RetentionReport, decide_snapshots
from components.snapshotter.snapshot_requests import BlockingCall
from components.snapshotter.table_state import awaits_release
from components.snapshotter.tags import release, retire
from registry.clock import Clock
from registry.contract import PAGE, MetadataStore
from registry.inputs import SnapshotDraft
from registry.json_text import parse_json
from registry.models import LakeTable, TableSnapshot

OWNER = "snapshotter"


class SnapshotExpiration:
    """`defaults` is the policy of tables without properties of their own."""

    def __init__(
        self, store: MetadataStore, tables: IcebergTables, call: BlockingCall, clock: Clock, defaults: SnapshotPolicy
    ) -> None:
        self._store = store
        self._tables = tables
        self._call = call
        self._clock = clock
        self._defaults = defaults

    async def expire(self, table: LakeTable, *, tags: Collection[str] = (), dry_run: bool = False) -> RetentionReport:
        """Expires what the policy does not keep, or the snapshots of these tags.

        Raises `PolicyProblem` if the table's policy cannot be read.
        """
        policy = await table_policy(self._store, table, self._defaults)
        rows = await snapshot_rows(self._store, table.id)
        report = RetentionReport(full_name(table), decide_snapshots(rows, policy, self._clock.now_ms(), tags))
        if dry_run:
            return report
        decided = {decision.id: decision for decision in report.removed}
        expired = [row for row in rows if row.id in decided]
        if expired:
            # Iceberg first: the registry allows the name to be reused as soon as its row is expired.
            await self._call(partial(retire, self._tables, table, expired))
            for row in expired:
                await self._store.update_snapshot(row.id, _expired(row, reason=f"expired: {decided[row.id].reason}"))
        report.released = await self._release(table, policy)
        return report

    async def _release(self, table: LakeTable, policy: SnapshotPolicy) -> list[int]:
        """Releases expired snapshots whose grace period is over."""
        now_ms = self._clock.now_ms()
        rows = [row for row in await snapshot_rows(self._store, table.id) if _is_released(row, policy, now_ms)]
        if not rows:
            return []
        unreferenced = await self._call(partial(release, self._tables, table, [row.id for row in rows]))
        if unreferenced:
            await self._store.record_intents(unreferenced, purpose="metadata", owner=OWNER)
        for row in rows:
            await self._store.update_snapshot(row.id, _expired(row, reason=row.reason, released=True))
        return [row.id for row in rows]


def anything_due(rows: Iterable[TableSnapshot], policy: SnapshotPolicy, now_ms: int) -> bool:
    """Returns whether `expire` would change anything, by these rows of one table."""
    listed = list(rows)
    return any(_is_released(row, policy, now_ms) for row in listed) or any(
        decision.remove for decision in decide_snapshots(listed, policy, now_ms)
    )


def _is_released(row: TableSnapshot, policy: SnapshotPolicy, now_ms: int) -> bool:
    """Whether it is expired, and its grace period is over."""
    return awaits_release(row) and row.updated_at <= now_ms - policy.grace_ms


async def table_policy(store: MetadataStore, table: LakeTable, defaults: SnapshotPolicy) -> SnapshotPolicy:
    metadata = await store.get_table_metadata(table.id)
    return defaults if metadata is None else read_policy(parse_json(metadata.properties), defaults)


async def snapshot_rows(store: MetadataStore, table_id: int) -> list[TableSnapshot]:
    rows: list[TableSnapshot] = []
    while page := await store.list_snapshots(table_id, after=rows[-1].id if rows else 0, limit=PAGE):
        rows += page
    return rows


def _expired(row: TableSnapshot, *, reason: str | None, released: bool = False) -> SnapshotDraft:
    return SnapshotDraft(
        snapshot_id=row.snapshot_id,
        timestamp=row.timestamp,
        manifest_list=None if released else row.manifest_list,
        summary=row.summary,
        schema_id=row.schema_id,
        trigger=row.trigger,
        status="expired",
        tag=row.tag,
        reason=reason,
    )
