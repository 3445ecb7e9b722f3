"""The compactor's journal. Unique pointers allow one row not started and one running per partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from registry import validation
from registry.contract import PAGE
from registry.errors import Conflict, Invalid, NotFound
from registry.inputs import CompactionDraft, CompactionOutcome, validate
from registry.models import Compaction, CompactionStatus, Savings
from registry.stores.dynamodb.base import DynamoBase
from registry.stores.dynamodb.reader import Range, Reader
from registry.stores.dynamodb.transaction import Transaction
from registry.stores.sql.compactions import NEW_COLUMNS, SUMS, begun_before, being_compacted, check_statuses, new_values


class DynamoCompactions(DynamoBase):
    async def record_compactions(self, drafts: Sequence[CompactionDraft]) -> None:
        validate(drafts)
        last = {(draft.table_id, draft.partition_path): draft for draft in drafts}

        async def change(tx: Transaction) -> None:
            found = await tx.find_many(Compaction, "standing", last)
            for key, draft in sorted(last.items()):
                values, old = _values(draft, tx.now), found.get(key)
                if old is None:
                    tx.insert(Compaction(id=tx.new_id(Compaction), **values))
                elif (old.status, old.rule, old.reason) != (draft.status, draft.rule, draft.reason):
                    tx.replace(old, **values)

        if drafts:
            await self._transact(change)

    async def begin_compaction(
        self, draft: CompactionDraft, *, operation_id: str, owner: str, stale_after_ms: int
    ) -> Compaction:
        validate([draft])
        validation.name("operation_id", operation_id)
        validation.non_empty("owner", owner)
        validation.ttl("stale_after_ms", stale_after_ms)
        here = (draft.table_id, draft.partition_path)

        async def change(tx: Transaction) -> Compaction:
            same = await tx.find(Compaction, "operation", operation_id)
            if same is not None:
                return begun_before(same, draft, operation_id, owner)
            running = await tx.find(Compaction, "running", *here)
            if running is not None:
                if running.updated_at > tx.now - stale_after_ms:
                    raise being_compacted(draft, running)
                reason = f"no sign of life; {owner} took over"
                tx.replace(running, status="aborted", ended_at=tx.now, updated_at=tx.now, reason=reason)
            begun = _values(draft, tx.now) | {
                "status": "running", "operation_id": operation_id, "owner": owner, "started_at": tx.now,
            }  # fmt: skip
            waiting = await tx.find(Compaction, "standing", *here)
            if waiting is not None:
                return tx.replace(waiting, **begun)
            return tx.insert(Compaction(id=tx.new_id(Compaction), **begun))

        return await self._transact(change)

    async def renew_compactions(self, ids: Sequence[int], *, owner: str) -> list[Compaction]:
        validation.every("id", ids, validation.integer)
        validation.non_empty("owner", owner)

        async def change(tx: Transaction) -> list[Compaction]:
            found = await tx.get_many(Compaction, [(number,) for number in sorted(set(ids))])
            mine = [row for row in found.values() if (row.owner, row.status) == (owner, "running")]
            return [tx.replace(row, updated_at=tx.now) for row in mine]

        return await self._transact(change) if ids else []

    async def finish_compaction(self, row_id: int, outcome: CompactionOutcome, *, owner: str) -> Compaction:
        validation.integer("row_id", row_id)
        validation.non_empty("owner", owner)
        validate([outcome])

        async def change(tx: Transaction) -> Compaction:
            row = await tx.get(Compaction, row_id)
            if row is None:
                raise NotFound(f"compaction {row_id} does not exist")
            if row.owner != owner or row.status not in ("running", "aborted", outcome.status):
                raise Conflict(f"compaction {row_id} of {row.owner} is {row.status}: it can't become {outcome.status}")
            given = {name: value for name, value in msgspec.structs.asdict(outcome).items() if value is not None}
            ended_at = tx.now if row.ended_at is None else row.ended_at
            return tx.replace(row, **{**given, "reason": outcome.reason, "updated_at": tx.now, "ended_at": ended_at})

        return await self._transact(change)

    async def request_cancel(self, table_id: int, *, partition_path: str | None = None) -> list[Compaction]:
        validation.integer("table_id", table_id)
        validation.optional("partition_path", partition_path, validation.path)

        async def change(tx: Transaction) -> list[Compaction]:
            cancelled = []
            for pointer in ("standing", "running"):
                for row in await tx.pointed(Compaction, pointer, table_id):
                    if partition_path not in (None, row.partition_path) or row.status == "declined":
                        continue
                    ended = {
                        "status": "cancelled", "reason": "cancelled before it began", "ended_at": tx.now,
                        "updated_at": tx.now,
                    } if row.status == "waiting" else {}  # fmt: skip
                    cancelled.append(tx.replace(row, cancel_requested=True, **ended))
            return sorted(cancelled, key=lambda row: row.id)

        return await self._transact(change)

    async def get_compaction(self, row_id: int) -> Compaction | None:
        validation.integer("row_id", row_id)
        return await self._get(Compaction, row_id)

    async def list_compactions(
        self,
        *,
        table_id: int | None = None,
        statuses: Sequence[CompactionStatus] = (),
        started_since: int | None = None,
        before: tuple[int, int] | None = None,
        limit: int = PAGE,
    ) -> list[Compaction]:
        validation.optional("table_id", table_id, validation.integer)
        check_statuses(statuses)
        validation.optional("started_since", started_since, validation.integer)
        validation.every("before", before or (), validation.integer)
        validation.integer("limit", limit, 1)

        def wanted(row: Compaction) -> bool:
            return (
                table_id in (None, row.table_id)
                and (not statuses or row.status in statuses)
                and (started_since is None or (row.started_at is not None and row.started_at >= started_since))
                and (before is None or (row.decided_at, row.id) < before)
            )

        within = Range(backwards=True, stop=before)
        return await self._read(
            lambda reader: reader.pointed(Compaction, "time", within=within, where=wanted, limit=limit)
        )

    async def get_savings(self, *, table_id: int | None = None) -> list[Savings]:
        validation.optional("table_id", table_id, validation.integer)

        async def read(reader: Reader) -> list[Savings]:
            totals: dict[int, Savings] = {}
            async for page in reader.pages(Compaction):
                for row in page:
                    if row.status == "done" and table_id in (None, row.table_id):
                        totals[row.table_id] = _added(totals.get(row.table_id), row)
            return [totals[number] for number in sorted(totals)]

        return await self._read(read)

    async def prune_compactions(
        self, older_than_ms: int, *, statuses: Sequence[CompactionStatus] = ("waiting", "declined"), limit: int = PAGE
    ) -> int:
        validation.integer("older_than_ms", older_than_ms)
        check_statuses(statuses)
        if "running" in statuses:
            raise Invalid("statuses", "running", "must not be pruned: finish the compaction first")
        validation.integer("limit", limit, 1)

        async def change(tx: Transaction) -> int:
            until = tx.now - older_than_ms
            old = await tx.rows(
                Compaction, where=lambda row: row.status in statuses and row.updated_at <= until, limit=limit
            )
            for row in old:
                tx.delete(row)
            return len(old)

        return await self._transact(change)


def _values(draft: CompactionDraft, now: int) -> dict[str, Any]:
    return dict(zip(NEW_COLUMNS, new_values(draft, now), strict=True))


def _added(total: Savings | None, row: Compaction) -> Savings:
    if total is None:
        total = Savings(row.table_id, row.table_name, 0, 0, 0, 0, 0, 0)
    sums = {name: getattr(total, name) + getattr(row, name) for name in SUMS}
    name = max(total.table_name, row.table_name)
    return msgspec.structs.replace(total, table_name=name, compactions=total.compactions + 1, **sums)
