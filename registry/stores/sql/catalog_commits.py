"""Commits through the Iceberg catalog: the pointer and everything that changes with it, in one transaction.

Pointers are moved first, then tables are locked, each in the order of table ids, so that concurrent calls wait for each
other instead of deadlocking. The order of the published rows is: created tables, markers, then everything else.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Column, ColumnElement, bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound
from registry.inputs import CatalogCommit, validate
from registry.models import CatalogRequest, TableDeleteFile, TableFile
from registry.schema import (
    files_awaiting_deletion,
    iceberg_commits,
    iceberg_tables,
    table_delete_files,
    table_files,
    tables,
    upload_intents,
)
from registry.stores.sql.base import select_rows
from registry.stores.sql.catalog_requests import SqlCatalogRequests, check_request
from registry.stores.sql.files import FileChange, SqlFiles
from registry.stores.sql.iceberg_catalog import IS_TABLE, check_names

KEPT_COMMITS = 1_000
"""Markers that are kept per table."""

PRUNE_EVERY = 64
"""One in so many commits prunes: chosen by the metadata file's name, which is random."""

_DELETE_COLUMNS = tuple(name for name in TableDeleteFile.__struct_fields__ if name != "id")
_tables = iceberg_tables.c

# Built once: building a statement takes longer than executing it.
_ADD_MARKER = insert(iceberg_commits).inline()
_MOVE_POINTER = (
    update(iceberg_tables)
    .where(
        _tables.catalog_name == bindparam("catalog"),
        _tables.table_namespace == bindparam("namespace"),
        _tables.table_name == bindparam("name"),
        _tables.metadata_location == bindparam("expected"),
        IS_TABLE,
    )
    .values(metadata_location=bindparam("new"), previous_metadata_location=bindparam("expected"))
)


class CommitPart(msgspec.Struct):
    """A table's part of the call, and the rows that it removes, locked."""

    commit: CatalogCommit
    removed: list[TableFile]
    removed_deletes: list[TableDeleteFile]

    def marker(self, now: int) -> dict[str, object]:
        commit = self.commit
        return {
            "table_id": commit.table_id,
            "snapshot_id": commit.snapshot_id,
            "parent_snapshot_id": commit.parent_snapshot_id,
            "operation": commit.operation,
            "engine": commit.engine,
            "added_files": len(commit.added),
            "removed_files": len(self.removed),
            "added_rows": sum(draft.row_count for draft in commit.added),
            "removed_rows": sum(file.row_count for file in self.removed),
            "added_delete_files": len(commit.deletes_added),
            "removed_delete_files": len(self.removed_deletes),
            "metadata_location": commit.location,
            "created_at": now,
            "updated_at": now,
        }

    @property
    def change(self) -> FileChange:
        commit, name = self.commit, self.commit.operation_id
        reason = f"external {name or commit.operation}"
        return FileChange(commit.table_id, self.removed, commit.added, "external", name, reason)


class SqlCatalogCommits(SqlFiles, SqlCatalogRequests):
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
        now = self._clock.now_ms()
        async with self._transaction() as connection:
            if any(commit.table_location is not None for commit in ordered):
                await self._lock_locations(connection)
            await self._record_request(connection, request, now)
            for commit in ordered:
                await self._move_pointer(connection, commit)
            if intents_of is not None:
                await self._complete_metadata_intents(connection, ordered, intents_of)
            for commit in ordered:
                await self._create_or_lock(connection, commit, now)
            parts = [await self._read_removed(connection, commit) for commit in ordered]
            for part in parts:
                await connection.execute(_ADD_MARKER, part.marker(now))
            for part in parts:
                await self._write_part(connection, part, now)
            await self._prune(connection, ordered, now)

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
        now = self._clock.now_ms()
        taken = f"table {to_namespace}.{to_name} exists"
        rename = (
            update(iceberg_tables)
            .where(*_key(catalog, namespace, name), IS_TABLE)
            .values(table_namespace=to_namespace, table_name=to_name)
        )
        async with self._transaction() as connection:
            await self._record_request(connection, request, now)
            try:
                with self._translating_errors():
                    if not (await connection.execute(rename)).rowcount:
                        raise NotFound(f"the catalog {catalog} has no table {namespace}.{name}")
                    own = await self._registered(connection, namespace, name, table_id)
                    if own is not None:
                        await self._rename(connection, own, to_namespace, to_name, now)
            except AlreadyExists:
                raise AlreadyExists(taken) from None

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
        dropped = delete(iceberg_tables).where(*_key(catalog, namespace, name), IS_TABLE)
        async with self._transaction() as connection:
            await self._record_request(connection, request, self._clock.now_ms())
            if not (await connection.execute(dropped)).rowcount:
                raise NotFound(f"the catalog {catalog} has no table {namespace}.{name}")
            own = await self._registered(connection, namespace, name, table_id)
            if own is not None:
                await self._drop(connection, own, purge=purge)

    async def _move_pointer(self, connection: AsyncConnection, commit: CatalogCommit) -> None:
        shown, key = f"{commit.namespace}.{commit.name}", _key(commit.catalog, commit.namespace, commit.name)
        if commit.expected is None:
            added = insert(iceberg_tables).values(
                catalog_name=commit.catalog, table_namespace=commit.namespace, table_name=commit.name,
                metadata_location=commit.location, iceberg_type="TABLE",
            )  # fmt: skip
            try:
                with self._translating_errors():
                    await connection.execute(added)
            except AlreadyExists:
                raise AlreadyExists(f"table {shown} exists") from None
            return
        values = {
            "catalog": commit.catalog,
            "namespace": commit.namespace,
            "name": commit.name,
            "expected": commit.expected,
            "new": commit.location,
        }
        if (await connection.execute(_MOVE_POINTER, values)).rowcount:
            return
        found = (await connection.execute(select(_tables.metadata_location).where(*key, IS_TABLE))).first()
        if found is None:
            raise NotFound(f"the catalog {commit.catalog} has no table {shown}")
        raise Conflict(f"table {shown} was committed to meanwhile: its metadata is {found[0]}", [str(found[0])])

    async def _complete_metadata_intents(
        self, connection: AsyncConnection, commits: Sequence[CatalogCommit], owner: str
    ) -> None:
        given = self._bind_rows([upload_intents.c.path], [(commit.location,) for commit in commits])
        ended = (
            delete(upload_intents)
            .where(upload_intents.c.owner == owner, upload_intents.c.path.in_(select(given.c.path)))
            .returning(upload_intents.c.path)
        )
        held = set((await connection.execute(ended)).scalars())
        lost = [commit.location for commit in commits if commit.location not in held]
        if lost:
            raise Conflict(f"{owner} no longer owns the upload intent of {lost[0]}: write it again", lost)

    async def _create_or_lock(self, connection: AsyncConnection, commit: CatalogCommit, now: int) -> None:
        location = commit.table_location
        if commit.create is None or location is None:
            if commit.removed or commit.required or commit.deletes_added or commit.deletes_removed:
                await self._lock_table(connection, commit.table_id)  # else the statements that follow do
            return
        try:
            with self._translating_errors():
                await self._insert_table(
                    connection, commit.namespace, commit.name, location, now, table_id=commit.table_id
                )
        except AlreadyExists:
            raise AlreadyExists(f"table {commit.namespace}.{commit.name} exists") from None
        await self._require_free_location(connection, commit.table_id, location)

    async def _move_table(self, connection: AsyncConnection, table_id: int, location: str, now: int) -> None:
        await self._require_free_location(connection, table_id, location)
        moved = update(tables).where(tables.c.id == table_id).values(location=location, updated_at=now)
        if not (await connection.execute(moved)).rowcount:
            raise NotFound(f"table {table_id} does not exist")
        await self._update_current_version(connection, table_id, {"updated_at": now})

    async def _read_removed(self, connection: AsyncConnection, commit: CatalogCommit) -> CommitPart:
        part = CommitPart(commit, [], [])
        if commit.removed:
            query = self._with_paths(table_files.c.file_path, commit.removed)
            rows = await connection.execute(
                select_rows(TableFile).where(table_files.c.table_id == commit.table_id, query).with_for_update()
            )
            part.removed = [TableFile(*row) for row in rows]
            require_all(commit, "removed", commit.removed, {file.file_path for file in part.removed})
        required = required_paths(commit)
        if required:
            query = self._with_paths(table_files.c.file_path, required)
            live = select(table_files.c.file_path).where(table_files.c.table_id == commit.table_id, query)
            require_all(commit, "required", required, set((await connection.execute(live)).scalars()))
        if commit.deletes_removed:
            keys = delete_keys(commit)
            query = self._with_paths(table_delete_files.c.file_path, [path for path, _ in keys])
            rows = await connection.execute(
                select_rows(TableDeleteFile).where(table_delete_files.c.table_id == commit.table_id, query)
            )
            found = {(file.file_path, file.content_offset): file for file in (TableDeleteFile(*row) for row in rows)}
            require_all(commit, "removed", keys, set(found))
            part.removed_deletes = [found[key] for key in keys]
        return part

    def _with_paths(self, column: Column[Any], paths: Sequence[str]) -> ColumnElement[bool]:
        given = self._bind_rows([column], [(path,) for path in paths])
        return column.in_(select(given.c.file_path))

    async def _write_part(self, connection: AsyncConnection, part: CommitPart, now: int) -> None:
        commit = part.commit
        try:
            with self._translating_errors():
                if commit.create is not None:
                    await self._insert_version(connection, commit.table_id, 1, commit.create, now)
                elif commit.version is not None and commit.version_expected is not None:
                    await self._add_version(connection, commit.table_id, commit.version, commit.version_expected, now)
                if commit.create is None and commit.table_location is not None:
                    await self._move_table(connection, commit.table_id, commit.table_location, now)
                if part.removed or commit.added:
                    await self._apply(connection, part.change)
                await self._remove_delete_files(connection, commit.table_id, part.removed_deletes, part.change.reason)
                await self._insert_many(connection, table_delete_files, _DELETE_COLUMNS, _delete_rows(commit, now))
                await self._keep_delete_files(connection, commit)
        except AlreadyExists as error:
            raise Conflict(
                f"table {commit.namespace}.{commit.name} has a file or version of this commit already: {error}"
            ) from None

    async def _keep_delete_files(self, connection: AsyncConnection, commit: CatalogCommit) -> None:
        """Those that come back, by an engine's rollback, no longer await deletion."""
        if commit.deletes_added:
            listed = files_awaiting_deletion.c
            paths = self._with_paths(listed.file_path, sorted({draft.file_path for draft in commit.deletes_added}))
            await connection.execute(delete(files_awaiting_deletion).where(listed.table_id == commit.table_id, paths))

    async def _prune(self, connection: AsyncConnection, commits: Sequence[CatalogCommit], now: int) -> None:
        row = iceberg_commits.c
        due = [commit for commit in commits if zlib.crc32(commit.location.encode()) % PRUNE_EVERY == 0]
        for commit in due:
            oldest = select(row.id).where(row.table_id == commit.table_id).order_by(row.id.desc())
            last = oldest.offset(KEPT_COMMITS).limit(1).scalar_subquery()
            await connection.execute(delete(iceberg_commits).where(row.table_id == commit.table_id, row.id <= last))
        if due:
            await self._prune_requests(connection, now)

    async def _registered(
        self, connection: AsyncConnection, namespace: str, name: str, table_id: int | None
    ) -> int | None:
        """Returns the id of the registry's table of that name. With ``table_id``, it must be this one."""
        query = select(tables.c.id).where(tables.c.database == namespace, tables.c.name == name)
        found = (await connection.execute(query.with_for_update())).scalar()
        if table_id is not None and found != table_id:
            raise Conflict(
                f"the registry's table {table_id} is not {namespace}.{name}: it was renamed or dropped, and the "
                "Iceberg updater has not followed yet"
            )
        return found

    async def _rename(
        self, connection: AsyncConnection, table_id: int, to_namespace: str, to_name: str, now: int
    ) -> None:
        await connection.execute(
            update(tables).where(tables.c.id == table_id).values(database=to_namespace, name=to_name, updated_at=now)
        )
        await self._update_current_version(connection, table_id, {"updated_at": now})


def check_commits(commits: Sequence[CatalogCommit]) -> None:
    validate(commits)
    for field, values in (
        ("table_id", [commit.table_id for commit in commits]),
        ("name", [(commit.catalog, commit.namespace, commit.name) for commit in commits]),
        ("location", [commit.location for commit in commits]),
    ):
        if len(set(values)) < len(values):
            raise Invalid(field, values[0], "appears twice in one call")
    for commit in commits:
        _check_one(commit)


def _check_one(commit: CatalogCommit) -> None:
    if commit.location == commit.expected:
        raise Invalid("location", commit.location, "is the metadata file that the table has already")
    if commit.create is not None:
        validation.database_name("namespace", commit.namespace)
        validation.table_name("name", commit.name)
        validation.non_empty("table_location", commit.table_location)
        validate([commit.create])
        if commit.version is not None or commit.removed or commit.deletes_removed or commit.required:
            raise Invalid("create", commit.name, "a new table has neither versions nor files to change")
    if commit.version is not None:
        validate([commit.version])
        validation.integer("version_expected", commit.version_expected, 1)
    validation.every("removed", commit.removed, validation.non_empty_path)
    validation.every("required", commit.required, validation.non_empty_path)
    validate(commit.deletes_added)
    for path, offset in delete_keys(commit):
        validation.non_empty_path("deletes_removed", path)
        validation.integer("deletes_removed", offset)
    _require_once("removed", [*commit.removed, *(draft.file_path for draft in commit.added)])
    _require_once("deletes_removed", [*delete_keys(commit), *(draft.key for draft in commit.deletes_added)])
    CommitPart(commit, [], []).change.check()


def _require_once(field: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise Invalid(field, next(value for value in values if values.count(value) > 1), "appears twice in one commit")


def required_paths(commit: CatalogCommit) -> list[str]:
    added = {draft.file_path for draft in commit.added}
    referenced = {draft.referenced_data_file for draft in commit.deletes_added} - {None}
    return sorted({*commit.required, *(str(path) for path in referenced)} - added)


def delete_keys(commit: CatalogCommit) -> list[tuple[str, int]]:
    return [(key, 0) if isinstance(key, str) else (key[0], key[1]) for key in commit.deletes_removed]


def _delete_rows(commit: CatalogCommit, now: int) -> list[tuple[object, ...]]:
    times: Mapping[str, object] = {"table_id": commit.table_id, "created_at": now, "updated_at": now}
    return [
        tuple(times[name] if name in times else getattr(draft, name) for name in _DELETE_COLUMNS)
        for draft in commit.deletes_added
    ]


def require_all(commit: CatalogCommit, what: str, wanted: Sequence[object], found: set[object]) -> None:
    missing = [key if isinstance(key, str) else key[0] for key in wanted if key not in found]  # type: ignore[index]
    if missing:
        raise Conflict(
            f"{len(missing)} {what} files of {commit.namespace}.{commit.name} are not in the registry, which has "
            f"changed meanwhile: {', '.join(missing[:5])}",
            missing,
        )


def _key(catalog: str, namespace: str, name: str) -> tuple[ColumnElement[bool], ...]:
    return (
        _tables.catalog_name == catalog,
        _tables.table_namespace == namespace,
        _tables.table_name == name,
    )
