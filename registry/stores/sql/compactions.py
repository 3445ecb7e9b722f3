"""The compactor's journal. Two partial unique indexes enforce one row not started and one running per partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
from sqlalchemy import case, cast, delete, func, select, true, tuple_, update

from registry import validation
from registry.contract import PAGE
from registry.errors import AlreadyExists, Conflict, Invalid
from registry.inputs import CompactionDraft, CompactionOutcome, validate
from registry.models import Compaction, CompactionStatus, Savings
from registry.schema import NOT_STARTED, RUNNING, BigInt, compactions
from registry.stores.sql.base import SqlBase, require_row, select_rows

SUMS = ("input_files", "input_bytes", "output_files", "output_bytes", "row_count")
NEW_COLUMNS = tuple(name for name in Compaction.__struct_fields__ if name != "id")
_PARTITION = (compactions.c.table_id, compactions.c.partition_path)


class SqlCompactions(SqlBase):
    async def record_compactions(self, drafts: Sequence[CompactionDraft]) -> None:
        validate(drafts)
        if not drafts:
            return
        now = self._clock.now_ms()
        last = {(draft.table_id, draft.partition_path): draft for draft in drafts}
        given = self._bind_rows(
            [compactions.c[name] for name in NEW_COLUMNS],
            [new_values(draft, now) for _, draft in sorted(last.items())],  # sorted: concurrent calls don't deadlock
        )
        picked = select(*(cast(given.c[name], compactions.c[name].type) for name in NEW_COLUMNS)).where(true())
        insert = self._insert(compactions).from_select(NEW_COLUMNS, picked)
        new, old = insert.excluded, compactions.c
        await self._write(
            insert.on_conflict_do_update(
                index_elements=_PARTITION,
                index_where=NOT_STARTED,
                set_={name: new[name] for name in NEW_COLUMNS if name not in ("table_id", "partition_path")},
                where=(old.status != new.status) | (old.rule != new.rule) | old.reason.is_distinct_from(new.reason),
            )
        )

    async def begin_compaction(
        self, draft: CompactionDraft, *, operation_id: str, owner: str, stale_after_ms: int
    ) -> Compaction:
        validate([draft])
        validation.name("operation_id", operation_id)
        validation.non_empty("owner", owner)
        validation.ttl("stale_after_ms", stale_after_ms)
        now = self._clock.now_ms()
        row = compactions.c
        here = (row.table_id == draft.table_id, row.partition_path == draft.partition_path)
        begun = dict(zip(NEW_COLUMNS, new_values(draft, now), strict=True)) | {
            "status": "running", "operation_id": operation_id, "owner": owner, "started_at": now,
        }  # fmt: skip
        abort_stale = (
            update(compactions)
            .where(*here, RUNNING, row.updated_at <= now - stale_after_ms, row.operation_id != operation_id)
            .values(status="aborted", ended_at=now, updated_at=now, reason=f"no sign of life; {owner} took over")
        )
        start = update(compactions).where(*here, NOT_STARTED).values(begun).returning(*row)
        try:
            async with self._transaction() as connection:
                await connection.execute(abort_stale)
                one = (await connection.execute(start)).first()
                if one is None:
                    one = (await connection.execute(self._insert(compactions).values(begun).returning(*row))).one()
                return Compaction(*one)
        except AlreadyExists:
            return await self._explain_not_begun(draft, operation_id, owner)

    async def _explain_not_begun(self, draft: CompactionDraft, operation_id: str, owner: str) -> Compaction:
        """Returns the row if this call repeats one that succeeded; else raises Conflict with the other owner."""
        row = compactions.c
        same = await self._row(Compaction, select_rows(Compaction).where(row.operation_id == operation_id))
        if same is not None:
            return begun_before(same, draft, operation_id, owner)
        here = select_rows(Compaction).where(
            row.table_id == draft.table_id, row.partition_path == draft.partition_path, RUNNING
        )
        raise being_compacted(draft, await self._row(Compaction, here))

    async def renew_compactions(self, ids: Sequence[int], *, owner: str) -> list[Compaction]:
        validation.every("id", ids, validation.integer)
        validation.non_empty("owner", owner)
        if not ids:
            return []
        row = compactions.c
        given = self._bind_rows([row.id], [(number,) for number in ids])
        own = select(row.id).where(row.id.in_(select(given.c.id)), row.owner == owner, RUNNING)
        renew = update(compactions).where(row.id.in_(own.order_by(row.id).with_for_update()))
        async with self._single_statement() as connection:
            renewed = await connection.execute(renew.values(updated_at=self._clock.now_ms()).returning(*row))
            return sorted((Compaction(*one) for one in renewed), key=lambda one: one.id)

    async def finish_compaction(self, row_id: int, outcome: CompactionOutcome, *, owner: str) -> Compaction:
        validation.integer("row_id", row_id)
        validation.non_empty("owner", owner)
        validate([outcome])
        now = self._clock.now_ms()
        row = compactions.c
        given = {name: value for name, value in msgspec.structs.asdict(outcome).items() if value is not None}
        ended = (
            update(compactions)
            .where(row.id == row_id, row.owner == owner, row.status.in_(("running", "aborted", outcome.status)))
            .values(
                {**given, "reason": outcome.reason, "updated_at": now, "ended_at": func.coalesce(row.ended_at, now)}
            )
        )
        done = await self._write_one(Compaction, ended.returning(*row))
        if done is not None:
            return done
        there = require_row(await self.get_compaction(row_id), f"compaction {row_id}")
        raise Conflict(f"compaction {row_id} of {there.owner} is {there.status}: it can't become {outcome.status}")

    async def request_cancel(self, table_id: int, *, partition_path: str | None = None) -> list[Compaction]:
        validation.integer("table_id", table_id)
        validation.optional("partition_path", partition_path, validation.path)
        now = self._clock.now_ms()
        row = compactions.c
        open_ones = select(row.id).where(row.table_id == table_id, row.status.in_(("waiting", "running")))
        if partition_path is not None:
            open_ones = open_ones.where(row.partition_path == partition_path)
        waits = row.status == "waiting"
        cancel = (
            update(compactions)
            .where(row.id.in_(open_ones.order_by(row.id).with_for_update()))
            .values(
                cancel_requested=True,
                status=case((waits, "cancelled"), else_=row.status),
                reason=case((waits, "cancelled before it began"), else_=row.reason),
                ended_at=case((waits, now), else_=row.ended_at),
                updated_at=case(
                    (waits, now), else_=row.updated_at
                ),  # for a running one it is the time of the last renewal
            )
            .returning(*row)
        )
        async with self._single_statement() as connection:
            return sorted((Compaction(*one) for one in await connection.execute(cancel)), key=lambda one: one.id)

    async def get_compaction(self, row_id: int) -> Compaction | None:
        validation.integer("row_id", row_id)
        return await self._row(Compaction, select_rows(Compaction).where(compactions.c.id == row_id))

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
        row = compactions.c
        query = select_rows(Compaction)
        if table_id is not None:
            query = query.where(row.table_id == table_id)
        if statuses:
            query = query.where(row.status.in_(statuses))
        if started_since is not None:
            query = query.where(row.started_at >= started_since)
        if before is not None:
            query = query.where(tuple_(row.decided_at, row.id) < before)
        return await self._rows(Compaction, query.order_by(row.decided_at.desc(), row.id.desc()).limit(limit))

    async def get_savings(self, *, table_id: int | None = None) -> list[Savings]:
        validation.optional("table_id", table_id, validation.integer)
        row = compactions.c
        sums = (cast(func.sum(row[name]), BigInt) for name in SUMS)
        query = select(row.table_id, func.max(row.table_name), func.count(), *sums).where(row.status == "done")
        if table_id is not None:
            query = query.where(row.table_id == table_id)
        async with self._autocommit() as connection:
            rows = await connection.execute(query.group_by(row.table_id).order_by(row.table_id))
            return [Savings(*one) for one in rows]

    async def prune_compactions(
        self, older_than_ms: int, *, statuses: Sequence[CompactionStatus] = ("waiting", "declined"), limit: int = PAGE
    ) -> int:
        validation.integer("older_than_ms", older_than_ms)
        check_statuses(statuses)
        if "running" in statuses:
            raise Invalid("statuses", "running", "must not be pruned: finish the compaction first")
        validation.integer("limit", limit, 1)
        row = compactions.c
        old = (
            select(row.id)
            .where(row.status.in_(statuses), row.updated_at <= self._clock.now_ms() - older_than_ms)
            .order_by(row.id)
            .limit(limit)
            .with_for_update(skip_locked=True)  # a locked row is being changed right now
        )
        return await self._write(delete(compactions).where(row.id.in_(old)))


def begun_before(same: Compaction, draft: CompactionDraft, operation_id: str, owner: str) -> Compaction:
    """Returns the row if this call repeats the one that began it; else raises Conflict."""
    repeated = (same.table_id, same.partition_path, same.owner, same.status) == (
        draft.table_id, draft.partition_path, owner, "running",
    )  # fmt: skip
    if repeated:
        return same
    raise Conflict(
        f"operation {operation_id} was begun before and is {same.status}: use a new operation_id", [operation_id]
    )


def being_compacted(draft: CompactionDraft, other: Compaction | None) -> Conflict:
    of = f"partition {draft.partition_path!r} of {draft.table_name}"
    if other is None or other.owner is None or other.operation_id is None:
        return Conflict(f"{of} was compacted until just now: begin again")
    return Conflict(
        f"{of} is being compacted by {other.owner} (operation {other.operation_id}): wait for it, or cancel it",
        [other.owner],
    )


def new_values(draft: CompactionDraft, now: int) -> tuple[object, ...]:
    return (
        draft.table_id, draft.table_name, draft.partition_path, draft.status, draft.trigger, draft.rule, draft.strategy,
        str(draft.explanation), draft.position, draft.input_files, draft.input_bytes, 0, 0, 0, None, None,
        False, draft.reason, now if draft.decided_at is None else draft.decided_at, None, None, now,
    )  # fmt: skip


def check_statuses(statuses: Sequence[str]) -> None:
    for status in statuses:
        validation.one_of("statuses", status, get_args(CompactionStatus))
