"""Table snapshots: requested, created, failed or expired."""

from __future__ import annotations

from typing import get_args

import msgspec

from registry import validation
from registry.contract import PAGE
from registry.errors import AlreadyExists, NotFound
from registry.inputs import SnapshotDraft
from registry.models import LakeTable, SnapshotStatus, SnapshotTrigger, TableSnapshot
from registry.stores.dynamodb.base import DynamoBase
from registry.stores.dynamodb.reader import Range
from registry.stores.dynamodb.transaction import Taken, Transaction
from registry.stores.sql.snapshots import check_snapshot


class DynamoSnapshots(DynamoBase):
    async def request_snapshot(
        self, table_id: int, *, trigger: SnapshotTrigger = "manual", tag: str | None = None, reason: str | None = None
    ) -> TableSnapshot:
        now = self._clock.now_ms()
        draft = SnapshotDraft(timestamp=now, trigger=trigger, status="requested", tag=tag, reason=reason)
        return await self.record_snapshot(table_id, draft)

    async def record_snapshot(self, table_id: int, draft: SnapshotDraft) -> TableSnapshot:
        validation.integer("table_id", table_id)
        check_snapshot(draft)

        async def change(tx: Transaction) -> TableSnapshot:
            if await tx.get(LakeTable, table_id) is None:
                raise NotFound(f"table {table_id} does not exist")
            values = msgspec.structs.asdict(draft)
            number, now = tx.new_id(TableSnapshot), tx.now
            return tx.insert(TableSnapshot(id=number, table_id=table_id, created_at=now, updated_at=now, **values))

        try:
            return await self._transact(change)
        except Taken:
            raise _tag_taken(draft) from None

    async def update_snapshot(self, row_id: int, draft: SnapshotDraft) -> TableSnapshot:
        validation.integer("row_id", row_id)
        check_snapshot(draft)

        async def change(tx: Transaction) -> TableSnapshot:
            old = await tx.find(TableSnapshot, "id", row_id)
            if old is None:
                raise NotFound(f"snapshot row {row_id} does not exist")
            return tx.replace(old, **msgspec.structs.asdict(draft), updated_at=tx.now)

        try:
            return await self._transact(change)
        except Taken:
            raise _tag_taken(draft) from None

    async def list_snapshots(
        self, table_id: int, *, status: SnapshotStatus | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableSnapshot]:
        validation.integer("table_id", table_id)
        validation.optional("status", status, lambda f, v: validation.one_of(f, v, get_args(SnapshotStatus)))
        validation.integer("after", after)
        validation.integer("limit", limit, 1)
        return await self._read(
            lambda reader: reader.rows(
                TableSnapshot,
                table_id,
                within=Range(after=(after,)),
                where=lambda row: status in (None, row.status),
                limit=limit,
            )
        )


def _tag_taken(draft: SnapshotDraft) -> AlreadyExists:
    return AlreadyExists(f"the table already has a snapshot with the tag {draft.tag!r}")
