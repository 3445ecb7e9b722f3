"""Upload intents and files awaiting deletion: objects that storage may contain beyond the live files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, delete, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningDelete

from registry import validation
from registry.contract import PAGE
from registry.models import FileAwaitingDeletion, UploadIntent
from registry.schema import files_awaiting_deletion, upload_intents
from registry.stores.sql.base import SqlBase, select_rows


class SqlUploadIntents(SqlBase):
    async def record_intents(self, paths: Sequence[str], *, purpose: str, owner: str) -> None:
        validation.every("path", paths, validation.non_empty_path)
        validation.non_empty("purpose", purpose)
        validation.non_empty("owner", owner)
        if paths:
            await self._record_intents(sorted(set(paths)), purpose, owner)

    async def _record_intents(self, paths: Sequence[str], purpose: str, owner: str) -> None:
        given = self._bind_rows([upload_intents.c.path], [(path,) for path in paths])
        await self._write(self._upsert_intents(select(given.c.path), purpose, owner))

    def _upsert_intents(self, paths: Select[tuple[str]], purpose: str, owner: str) -> postgresql.Insert | sqlite.Insert:
        rows = paths.add_columns(literal(purpose), literal(owner), literal(self._clock.now_ms())).where(
            literal(True)  # SQLite's grammar wants a WHERE between SELECT and ON CONFLICT
        )
        insert = self._insert(upload_intents).from_select(["path", "purpose", "owner", "created_at"], rows)
        return insert.on_conflict_do_update(
            index_elements=[upload_intents.c.path],
            set_={name: insert.excluded[name] for name in ("purpose", "owner", "created_at")},
        )

    async def renew_intents(
        self, paths: Sequence[str] | None, *, owner: str, new_owner: str | None = None
    ) -> list[str]:
        validation.every("path", paths or (), validation.non_empty_path)
        validation.non_empty("owner", owner)
        validation.optional("new_owner", new_owner, validation.non_empty)
        if paths is not None and not paths:
            return []
        renew = (
            update(upload_intents)
            .where(upload_intents.c.owner == owner)
            .values(owner=new_owner or owner, created_at=self._clock.now_ms())
            .returning(upload_intents.c.path)
        )
        if paths is not None:
            given = self._bind_rows([upload_intents.c.path], [(path,) for path in paths])
            renew = renew.where(upload_intents.c.path.in_(select(given.c.path)))
        async with self._single_statement() as connection:
            return sorted((await connection.execute(renew)).scalars())

    async def complete_intents(self, paths: Sequence[str]) -> None:
        validation.every("path", paths, validation.non_empty_path)
        if not paths:
            return
        given = self._bind_rows([upload_intents.c.path], [(path,) for path in paths])
        await self._write(delete(upload_intents).where(upload_intents.c.path.in_(select(given.c.path))))

    async def list_stale_intents(self, older_than_ms: int, *, after: str = "", limit: int = PAGE) -> list[UploadIntent]:
        validation.integer("older_than_ms", older_than_ms)
        validation.path("after", after)
        validation.integer("limit", limit, 1)
        query = select_rows(UploadIntent).where(
            upload_intents.c.created_at <= self._clock.now_ms() - older_than_ms, upload_intents.c.path > after
        )
        return await self._rows(UploadIntent, query.order_by(upload_intents.c.path).limit(limit))

    async def claim_stale_intents(self, older_than_ms: int, *, owner: str, limit: int = PAGE) -> list[UploadIntent]:
        validation.integer("older_than_ms", older_than_ms)
        validation.non_empty("owner", owner)
        validation.integer("limit", limit, 1)
        now = self._clock.now_ms()
        columns = upload_intents.c
        stale = (
            select(columns.path)
            .where(columns.created_at <= now - older_than_ms)
            .order_by(columns.created_at, columns.path)
            .limit(limit)
            .with_for_update(skip_locked=True)  # a locked one is being registered right now
        )
        claim = (
            update(upload_intents)
            .where(columns.path.in_(stale))
            .values(owner=owner, created_at=now)
            .returning(*upload_intents.c)
        )
        async with self._single_statement() as connection:
            claimed = [UploadIntent(*row) for row in await connection.execute(claim)]
        return sorted(claimed, key=lambda intent: intent.path)

    async def list_files_awaiting_deletion(
        self, *, table_id: int | None = None, removed_before: int | None = None, after: int = 0, limit: int = PAGE
    ) -> list[FileAwaitingDeletion]:
        validation.optional("table_id", table_id, validation.integer)
        validation.optional("removed_before", removed_before, validation.integer)
        validation.integer("after", after)
        validation.integer("limit", limit, 1)
        columns = files_awaiting_deletion.c
        query = select_rows(FileAwaitingDeletion).where(columns.id > after)
        if table_id is not None:
            query = query.where(columns.table_id == table_id)
        if removed_before is not None:
            query = query.where(columns.removed_at < removed_before)
        return await self._rows(FileAwaitingDeletion, query.order_by(columns.id).limit(limit))

    async def claim_files_awaiting_deletion(
        self, ids: Sequence[int], *, purpose: str, owner: str
    ) -> list[FileAwaitingDeletion]:
        validation.every("id", ids, validation.integer)
        validation.non_empty("purpose", purpose)
        validation.non_empty("owner", owner)
        if not ids:
            return []
        given = self._bind_rows([files_awaiting_deletion.c.id], [(number,) for number in ids])
        taken = (
            delete(files_awaiting_deletion)
            .where(files_awaiting_deletion.c.id.in_(select(given.c.id)))
            .returning(*files_awaiting_deletion.c)
        )
        return sorted(await self._claim(taken, purpose, owner), key=lambda file: file.id)

    async def _claim(self, taken: ReturningDelete[Any], purpose: str, owner: str) -> list[FileAwaitingDeletion]:
        async with self._transaction() as connection:
            files = [FileAwaitingDeletion(*row) for row in await connection.execute(taken)]
            if files:
                paths = sorted({file.file_path for file in files})
                given = self._bind_rows([upload_intents.c.path], [(path,) for path in paths])
                await connection.execute(self._upsert_intents(select(given.c.path), purpose, owner))
            return files

    async def forget_deleted_files(self, ids: Sequence[int]) -> None:
        validation.every("id", ids, validation.integer)
        if not ids:
            return
        given = self._bind_rows([files_awaiting_deletion.c.id], [(number,) for number in ids])
        ids_given = select(given.c.id)
        await self._write(delete(files_awaiting_deletion).where(files_awaiting_deletion.c.id.in_(ids_given)))
