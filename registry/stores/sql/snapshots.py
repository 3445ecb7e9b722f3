"""Table snapshots: requested, created, failed or expired."""

from __future__ import annotations

from typing import get_args

import msgspec
from sqlalchemy import insert, update
from sqlalchemy.sql import Executable

from registry import validation
from registry.contract import PAGE
from registry.errors import AlreadyExists, Invalid, NotFound
from registry.inputs import SnapshotDraft, validate
from registry.models import SnapshotStatus, SnapshotTrigger, TableSnapshot
from registry.schema import table_snapshots
from registry.stores.sql.base import SqlBase, require_row, select_rows


class SqlSnapshots(SqlBase):
    async def request_snapshot(
        self, table_id: int, *, trigger: SnapshotTrigger = "manual", tag: str | None = None, reason: str | None = None
    ) -> TableSnapshot:
        now = self._clock.now_ms()
        draft = SnapshotDraft(timestamp=now, trigger=trigger, status="requested", tag=tag, reason=reason)
        return await self.record_snapshot(table_id, draft)

    async def record_snapshot(self, table_id: int, draft: SnapshotDraft) -> TableSnapshot:
        validation.integer("table_id", table_id)
        check_snapshot(draft)
        now = self._clock.now_ms()
        values = {**msgspec.structs.asdict(draft), "table_id": table_id, "created_at": now, "updated_at": now}
        try:
            row = await self._snapshot(draft, insert(table_snapshots).values(values).returning(table_snapshots))
        except NotFound:
            raise NotFound(f"table {table_id} does not exist") from None
        return require_row(row, f"table {table_id}")

    async def update_snapshot(self, row_id: int, draft: SnapshotDraft) -> TableSnapshot:
        validation.integer("row_id", row_id)
        check_snapshot(draft)
        values = {**msgspec.structs.asdict(draft), "updated_at": self._clock.now_ms()}
        statement = update(table_snapshots).where(table_snapshots.c.id == row_id).values(values)
        return require_row(await self._snapshot(draft, statement.returning(table_snapshots)), f"snapshot row {row_id}")

    async def list_snapshots(
        self, table_id: int, *, status: SnapshotStatus | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableSnapshot]:
        validation.integer("table_id", table_id)
        validation.optional("status", status, lambda f, v: validation.one_of(f, v, get_args(SnapshotStatus)))
        validation.integer("after", after)
        validation.integer("limit", limit, 1)
        query = select_rows(TableSnapshot).where(table_snapshots.c.table_id == table_id, table_snapshots.c.id > after)
        if status is not None:
            query = query.where(table_snapshots.c.status == status)
        return await self._rows(TableSnapshot, query.order_by(table_snapshots.c.id).limit(limit))

    async def _snapshot(self, draft: SnapshotDraft, statement: Executable) -> TableSnapshot | None:
        try:
            return await self._write_one(TableSnapshot, statement)
        except AlreadyExists:
            raise AlreadyExists(f"the table already has a snapshot with the tag {draft.tag!r}") from None


def check_snapshot(draft: SnapshotDraft) -> None:
    validate([draft])
    if draft.status == "created" and draft.snapshot_id is None:
        raise Invalid("snapshot_id", None, "is required for a created snapshot")
