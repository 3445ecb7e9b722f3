"""Upload intents and files awaiting deletion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from registry import validation
from registry.contract import PAGE
from registry.models import FileAwaitingDeletion, UploadIntent
from registry.stores.dynamodb.base import DynamoBase
from registry.stores.dynamodb.reader import Range
from registry.stores.dynamodb.transaction import Transaction


class DynamoUploadIntents(DynamoBase):
    async def record_intents(self, paths: Sequence[str], *, purpose: str, owner: str) -> None:
        validation.every("path", paths, validation.non_empty_path)
        validation.non_empty("purpose", purpose)
        validation.non_empty("owner", owner)
        if paths:
            await self._transact(lambda tx: self._put_intents(tx, paths, purpose, owner))

    async def _put_intents(self, tx: Transaction, paths: Iterable[str], purpose: str, owner: str) -> None:
        wanted = sorted(set(paths))
        found = await tx.get_many(UploadIntent, [(path,) for path in wanted])
        for path in wanted:
            row, old = UploadIntent(path, purpose, owner, tx.now), found.get((path,))
            if old is None:
                tx.insert(row)
            else:
                tx.update(old, row)

    async def renew_intents(
        self, paths: Sequence[str] | None, *, owner: str, new_owner: str | None = None
    ) -> list[str]:
        validation.every("path", paths or (), validation.non_empty_path)
        validation.non_empty("owner", owner)
        validation.optional("new_owner", new_owner, validation.non_empty)
        if paths is not None and not paths:
            return []

        async def change(tx: Transaction) -> list[str]:
            if paths is None:
                mine = await tx.rows(UploadIntent, where=lambda row: row.owner == owner)
            else:
                found = await tx.get_many(UploadIntent, [(path,) for path in paths])
                mine = [row for row in found.values() if row.owner == owner]
            for row in mine:
                tx.replace(row, owner=new_owner or owner, created_at=tx.now)
            return sorted(row.path for row in mine)

        return await self._transact(change)

    async def complete_intents(self, paths: Sequence[str]) -> None:
        validation.every("path", paths, validation.non_empty_path)
        if paths:
            await self._transact(lambda tx: self._delete_intents(tx, paths))

    async def _delete_intents(self, tx: Transaction, paths: Iterable[str], *, owner: str | None = None) -> set[str]:
        """Returns the paths of the deleted ones. With ``owner``, only its own."""
        found = await tx.get_many(UploadIntent, [(path,) for path in paths])
        gone = [row for row in found.values() if owner in (None, row.owner)]
        for row in gone:
            tx.delete(row)
        return {row.path for row in gone}

    async def list_stale_intents(self, older_than_ms: int, *, after: str = "", limit: int = PAGE) -> list[UploadIntent]:
        validation.integer("older_than_ms", older_than_ms)
        validation.path("after", after)
        validation.integer("limit", limit, 1)
        until = self._clock.now_ms() - older_than_ms
        within = Range(after=(after,)) if after else Range()
        return await self._read(
            lambda reader: reader.rows(
                UploadIntent, within=within, where=lambda row: row.created_at <= until, limit=limit
            )
        )

    async def claim_stale_intents(self, older_than_ms: int, *, owner: str, limit: int = PAGE) -> list[UploadIntent]:
        validation.integer("older_than_ms", older_than_ms)
        validation.non_empty("owner", owner)
        validation.integer("limit", limit, 1)

        async def change(tx: Transaction) -> list[UploadIntent]:
            until = tx.now - older_than_ms
            if until < 0:
                return []
            old = await tx.pointed(UploadIntent, "age", within=Range(stop=(until + 1, "")), limit=limit)
            claimed = [tx.replace(row, owner=owner, created_at=tx.now) for row in old if row.created_at <= until]
            return sorted(claimed, key=lambda intent: intent.path)

        return await self._transact(change)

    async def list_files_awaiting_deletion(
        self, *, table_id: int | None = None, removed_before: int | None = None, after: int = 0, limit: int = PAGE
    ) -> list[FileAwaitingDeletion]:
        validation.optional("table_id", table_id, validation.integer)
        validation.optional("removed_before", removed_before, validation.integer)
        validation.integer("after", after)
        validation.integer("limit", limit, 1)

        def wanted(row: FileAwaitingDeletion) -> bool:
            return table_id in (None, row.table_id) and (removed_before is None or row.removed_at < removed_before)

        return await self._read(
            lambda reader: reader.rows(FileAwaitingDeletion, within=Range(after=(after,)), where=wanted, limit=limit)
        )

    async def claim_files_awaiting_deletion(
        self, ids: Sequence[int], *, purpose: str, owner: str
    ) -> list[FileAwaitingDeletion]:
        validation.every("id", ids, validation.integer)
        validation.non_empty("purpose", purpose)
        validation.non_empty("owner", owner)
        if not ids:
            return []

        async def change(tx: Transaction) -> list[FileAwaitingDeletion]:
            found = await tx.get_many(FileAwaitingDeletion, [(number,) for number in ids])
            files = sorted(found.values(), key=lambda file: file.id)
            for file in files:
                tx.delete(file)
            await self._put_intents(tx, [file.file_path for file in files], purpose, owner)
            return files

        return await self._transact(change)

    async def forget_deleted_files(self, ids: Sequence[int]) -> None:
        validation.every("id", ids, validation.integer)
        if not ids:
            return

        async def change(tx: Transaction) -> None:
            for file in (await tx.get_many(FileAwaitingDeletion, [(number,) for number in ids])).values():
                tx.delete(file)

        await self._transact(change)

    async def _list_for_deletion(self, tx: Transaction, rows: Iterable[tuple[int, str, int, str, str, int]]) -> None:
        for values in rows:
            tx.insert(FileAwaitingDeletion(tx.new_id(FileAwaitingDeletion), *values))  # type: ignore[arg-type]

    async def _unlist(self, tx: Transaction, table_id: int, paths: Iterable[str]) -> set[str]:
        """Removes paths from the files awaiting deletion. Returns those that were listed."""
        keys: list[tuple[str | int, ...]] = [(table_id, path) for path in paths]
        found = await tx.find_many(FileAwaitingDeletion, "path", keys)
        for row in found.values():
            tx.delete(row)
        return {row.file_path for row in found.values()}
