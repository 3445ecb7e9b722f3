"""Commits through the Iceberg catalog: the pointer and everything that changes with it, in one transaction."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from registry import validation
from registry.errors import AlreadyExists, Conflict, NotFound
from registry.inputs import CatalogCommit
from registry.models import (
    CatalogRequest,
    CatalogTable,
    IcebergCommit,
    LakeTable,
    TableDeleteFile,
    TableFile,
)
from registry.stores.dynamodb.files import DynamoFiles
from registry.stores.dynamodb.iceberg_catalog import DynamoIcebergCatalog, is_table
from registry.stores.dynamodb.transaction import Taken, Transaction
from registry.stores.sql.catalog_commits import (
    KEPT_COMMITS,
    PRUNE_EVERY,
    CommitPart,
    check_commits,
    delete_keys,
    require_all,
    required_paths,
)
from registry.stores.sql.catalog_requests import check_request
from registry.stores.sql.iceberg_catalog import check_names


class DynamoCatalogCommits(DynamoFiles, DynamoIcebergCatalog):
    async def reserve_table_id(self) -> int:
        async def change(tx: Transaction) -> int:
            return tx.new_id(LakeTable)

        return await self._transact(change)

    async def commit_catalog(
        self,
        commits: Sequence[CatalogCommit],
        *,
        request: CatalogRequest | None = None,
        intents_of: str | None = None,
    ) -> None:
        check_commits(commits)
        check_request(request)
        validation.optional("intents_of", intents_of, validation.non_empty)
        if not commits and request is None:
            return
        ordered = sorted(commits, key=lambda commit: commit.table_id)

        async def change(tx: Transaction) -> None:
            await self._record_request(tx, request)
            for commit in ordered:
                await self._move_pointer(tx, commit)
            if intents_of is not None:
                await self._complete_metadata_intents(tx, ordered, intents_of)
            for commit in ordered:
                await self._create(tx, commit)
            parts = [await self._read_removed(tx, commit) for commit in ordered]
            for part in parts:
                tx.insert(IcebergCommit(id=tx.new_id(IcebergCommit), **part.marker(tx.now)))  # type: ignore[arg-type]
            for part in parts:
                await self._write_part(tx, part)
            await self._prune(tx, ordered)

        try:
            await self._transact(change)
        except Taken as error:
            raise Conflict(f"a table has a file or version of this commit already: {error}") from None

    async def rename_catalog_table(
        self,
        catalog: str,
        namespace: str,
        name: str,
        to_namespace: str,
        to_name: str,
        *,
        table_id: int | None = None,
        request: CatalogRequest | None = None,
    ) -> None:
        check_names(catalog=catalog, namespace=namespace, name=name, to_namespace=to_namespace, to_name=to_name)
        validation.database_name("to_namespace", to_namespace)
        validation.table_name("to_name", to_name)
        validation.optional("table_id", table_id, validation.integer)
        check_request(request)
        taken = AlreadyExists(f"table {to_namespace}.{to_name} exists")

        async def change(tx: Transaction) -> None:
            await self._record_request(tx, request)
            old = await self._catalog_table(tx, catalog, namespace, name)
            if (to_namespace, to_name) == (namespace, name):
                return
            if await tx.get(CatalogTable, catalog, to_namespace, to_name) is not None:
                raise taken
            tx.delete(old)
            tx.insert(msgspec.structs.replace(old, table_namespace=to_namespace, table_name=to_name))
            own = await self._registered(tx, namespace, name, table_id)
            if own is not None:
                if await tx.find(LakeTable, "name", to_namespace, to_name) is not None:
                    raise taken
                tx.replace(own, database=to_namespace, name=to_name, updated_at=tx.now)
                await self._update_current_version(tx, own.id, {"updated_at": tx.now})

        await self._transact(change)

    async def drop_catalog_table(
        self,
        catalog: str,
        namespace: str,
        name: str,
        *,
        purge: bool,
        table_id: int | None = None,
        request: CatalogRequest | None = None,
    ) -> None:
        check_names(catalog=catalog, namespace=namespace, name=name)
        validation.boolean("purge", purge)
        validation.optional("table_id", table_id, validation.integer)
        check_request(request)

        async def change(tx: Transaction) -> None:
            await self._record_request(tx, request)
            tx.delete(await self._catalog_table(tx, catalog, namespace, name))
            own = await self._registered(tx, namespace, name, table_id)
            if own is not None:
                await self._drop(tx, own.id, purge=purge)

        await self._transact(change)

    async def _catalog_table(self, tx: Transaction, catalog: str, namespace: str, name: str) -> CatalogTable:
        row = await tx.get(CatalogTable, catalog, namespace, name)
        if row is None or not is_table(row):
            raise NotFound(f"the catalog {catalog} has no table {namespace}.{name}")
        return row

    async def _registered(self, tx: Transaction, namespace: str, name: str, table_id: int | None) -> LakeTable | None:
        """Returns the registry's table of that name. With ``table_id``, it must be this one."""
        found = await tx.find(LakeTable, "name", namespace, name)
        if table_id is not None and (found is None or found.id != table_id):
            raise Conflict(
                f"the registry's table {table_id} is not {namespace}.{name}: it was renamed or dropped, and the "
                "Iceberg updater has not followed yet"
            )
        return found

    async def _move_pointer(self, tx: Transaction, commit: CatalogCommit) -> None:
        shown = f"{commit.namespace}.{commit.name}"
        row = await tx.get(CatalogTable, commit.catalog, commit.namespace, commit.name)
        if commit.expected is None:
            if row is not None:
                raise AlreadyExists(f"table {shown} exists")
            tx.insert(CatalogTable(commit.catalog, commit.namespace, commit.name, commit.location, None, "TABLE"))
            return
        if row is None or not is_table(row):
            raise NotFound(f"the catalog {commit.catalog} has no table {shown}")
        if row.metadata_location != commit.expected:
            found = str(row.metadata_location)
            raise Conflict(f"table {shown} was committed to meanwhile: its metadata is {found}", [found])
        tx.replace(row, metadata_location=commit.location, previous_metadata_location=commit.expected)

    async def _complete_metadata_intents(self, tx: Transaction, commits: Sequence[CatalogCommit], owner: str) -> None:
        held = await self._delete_intents(tx, [commit.location for commit in commits], owner=owner)
        lost = [commit.location for commit in commits if commit.location not in held]
        if lost:
            raise Conflict(f"{owner} no longer owns the upload intent of {lost[0]}: write it again", lost)

    async def _create(self, tx: Transaction, commit: CatalogCommit) -> None:
        location = commit.table_location
        if commit.create is None or location is None:
            await self._table(tx, commit.table_id)
            return
        await self._insert_table(tx, commit.table_id, commit.namespace, commit.name, location)
        tx.keep_ids_above(LakeTable, commit.table_id)
        await self._require_free_location(tx, commit.table_id, location)

    async def _read_removed(self, tx: Transaction, commit: CatalogCommit) -> CommitPart:
        part = CommitPart(commit, [], [])
        table = commit.table_id
        removed = await tx.find_many(TableFile, "path", [(table, path) for path in commit.removed])
        part.removed = list(removed.values())
        require_all(commit, "removed", commit.removed, {file.file_path for file in part.removed})
        required = required_paths(commit)
        live = await tx.find_many(TableFile, "path", [(table, path) for path in required])
        require_all(commit, "required", required, {file.file_path for file in live.values()})
        keys = delete_keys(commit)
        deletes = await tx.find_many(TableDeleteFile, "path", [(table, *key) for key in keys])
        found = {(file.file_path, file.content_offset): file for file in deletes.values()}
        require_all(commit, "removed", keys, set(found))
        part.removed_deletes = [found[key] for key in keys]
        return part

    async def _write_part(self, tx: Transaction, part: CommitPart) -> None:
        commit = part.commit
        if commit.create is not None:
            self._insert_version(tx, commit.table_id, 1, commit.create)
        elif commit.version is not None and commit.version_expected is not None:
            await self._add_version(tx, commit.table_id, commit.version, commit.version_expected)
        if commit.create is None and commit.table_location is not None:
            await self._require_free_location(tx, commit.table_id, commit.table_location)
            table = await self._table(tx, commit.table_id)
            tx.replace(table, location=commit.table_location, updated_at=tx.now)
            await self._update_current_version(tx, commit.table_id, {"updated_at": tx.now})
        try:
            if part.removed or commit.added:
                await self._apply(tx, part.change)
        except AlreadyExists as error:
            raise Conflict(
                f"table {commit.namespace}.{commit.name} has a file or version of this commit already: {error}"
            ) from None
        await self._remove_delete_files(tx, commit.table_id, part.removed_deletes, part.change.reason)
        for draft in commit.deletes_added:
            tx.insert(
                TableDeleteFile(
                    id=tx.new_id(TableDeleteFile), table_id=commit.table_id, created_at=tx.now, updated_at=tx.now,
                    **msgspec.structs.asdict(draft),
                )
            )  # fmt: skip
        # Those that come back, by an engine's rollback, no longer await deletion.
        await self._unlist(tx, commit.table_id, sorted({draft.file_path for draft in commit.deletes_added}))

    async def _prune(self, tx: Transaction, commits: Sequence[CatalogCommit]) -> None:
        due = [commit for commit in commits if zlib.crc32(commit.location.encode()) % PRUNE_EVERY == 0]
        for commit in due:
            markers = await tx.rows(IcebergCommit, commit.table_id)
            for row in markers[:-KEPT_COMMITS]:
                tx.delete(row)
        if due:
            await self._prune_requests(tx)
