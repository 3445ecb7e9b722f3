"""Lake tables and their schema versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
from sqlalchemy import ColumnElement, delete, func, insert, literal, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.contract import PAGE
from registry.errors import AlreadyExists, Conflict, NotFound
from registry.inputs import TableDraft, validate
from registry.json_text import JsonText, JsonValue, to_json_text
from registry.models import (
    LakeTable,
    TableDeleteFile,
    TableFile,
    TableMetadata,
    TableOrder,
    TablePage,
    TableStatus,
)
from registry.schema import files_awaiting_deletion, table_delete_files, table_files, table_metadata, tables
from registry.stores.sql.base import SqlBase, require_row, select_rows

_FULL_NAME = tables.c.database + "." + tables.c.name
_ORDER_KEYS: Mapping[TableOrder, ColumnElement[Any]] = {
    "name": _FULL_NAME,
    "files": tables.c.file_count,
    "size": tables.c.total_size,
    "rows": tables.c.row_count,
    "modified": tables.c.last_modified,
}


class SqlTables(SqlBase):
    async def create_table(self, database: str, name: str, location: str, draft: TableDraft) -> LakeTable:
        validation.database_name("database", database)
        validation.table_name("name", name)
        validation.non_empty("location", location)
        validate([draft])
        now = self._clock.now_ms()
        try:
            async with self._transaction() as connection:
                await self._lock_locations(connection)
                table = await self._insert_table(connection, database, name, location, now)
                await self._insert_version(connection, table.id, 1, draft, now)
        except AlreadyExists:
            raise AlreadyExists(f"table {database}.{name} exists") from None
        return table

    async def _insert_table(
        self,
        connection: AsyncConnection,
        database: str,
        name: str,
        location: str,
        now: int,
        *,
        table_id: int | None = None,
    ) -> LakeTable:
        values: dict[str, object] = {
            "database": database, "name": name, "location": location, "status": "active",
            "row_count": 0, "total_size": 0, "file_count": 0,
            "last_modified": now, "created_at": now, "updated_at": now,
        }  # fmt: skip
        if table_id is not None:
            values["id"] = table_id
        return LakeTable(*(await connection.execute(insert(tables).values(values).returning(tables))).one())

    async def _insert_version(
        self, connection: AsyncConnection, table_id: int, version: int, draft: TableDraft, now: int
    ) -> TableMetadata:
        statement = insert(table_metadata).values(_version(table_id, version, draft, now)).returning(table_metadata)
        return TableMetadata(*(await connection.execute(statement)).one())

    async def get_table(self, database: str, name: str) -> LakeTable | None:
        validation.name("database", database)
        validation.name("name", name)
        query = select_rows(LakeTable).where(tables.c.database == database, tables.c.name == name)
        return await self._row(LakeTable, query)

    async def get_table_by_id(self, table_id: int) -> LakeTable | None:
        validation.integer("table_id", table_id)
        return await self._row(LakeTable, select_rows(LakeTable).where(tables.c.id == table_id))

    async def list_tables(self, database: str | None = None) -> list[LakeTable]:
        query = select_rows(LakeTable).order_by(tables.c.database, tables.c.name)
        if database is not None:
            validation.name("database", database)
            query = query.where(tables.c.database == database)
        return await self._rows(LakeTable, query)

    async def search_tables(
        self,
        text: str = "",
        *,
        order: TableOrder = "name",
        after: tuple[str | int, int] | None = None,
        limit: int = PAGE,
    ) -> TablePage:
        validation.text("text", text)
        validation.one_of("order", order, get_args(TableOrder))
        validation.integer("limit", limit, 1)
        if after is not None:
            (validation.text if order == "name" else validation.integer)("after", after[0])
            validation.integer("after", after[1])
        found = _FULL_NAME.icontains(text, autoescape=True) if text else literal(True)
        key, by_id = _ORDER_KEYS[order], tables.c.id
        query = select(tables, key.label("order_key")).where(found)
        query = query.order_by(key, by_id) if order == "name" else query.order_by(key.desc(), by_id.desc())
        if after is not None:
            place = tuple_(key, by_id)
            query = query.where(place > after if order == "name" else place < after)
        async with self._autocommit() as connection:
            total = (await connection.execute(select(func.count()).select_from(tables).where(found))).scalar_one()
            rows = (await connection.execute(query.limit(limit + 1))).all()
        page = [LakeTable(*row[:-1]) for row in rows[:limit]]
        return TablePage(page, total, (rows[limit - 1][-1], page[-1].id) if len(rows) > limit else None)

    async def alter_table(
        self,
        table_id: int,
        *,
        database: str | None = None,
        name: str | None = None,
        location: str | None = None,
        status: TableStatus | None = None,
        properties: Mapping[str, JsonValue] | None = None,
    ) -> LakeTable:
        validation.integer("table_id", table_id)
        validation.optional("database", database, validation.database_name)
        validation.optional("name", name, validation.table_name)
        validation.optional("location", location, validation.non_empty)
        validation.optional("status", status, lambda f, v: validation.one_of(f, v, get_args(TableStatus)))
        now = self._clock.now_ms()
        given = {"database": database, "name": name, "location": location, "status": status}
        changes = {column: value for column, value in given.items() if value is not None}
        statement = update(tables).where(tables.c.id == table_id).values({**changes, "updated_at": now})
        try:
            async with self._transaction() as connection:
                if location is not None:
                    await self._lock_locations(connection)
                row = (await connection.execute(statement.returning(tables))).first()
                table = require_row(None if row is None else LakeTable(*row), f"table {table_id}")
                followed: dict[str, object] = {"updated_at": now}
                if properties is not None:
                    followed |= {"properties": to_json_text(properties, "properties"), "last_modified": now}
                if len(followed) > 1 or {"database", "name", "location"} & changes.keys():
                    await self._update_current_version(connection, table_id, followed)
        except AlreadyExists:
            raise AlreadyExists(f"another table is already named {name or database!r}") from None
        return table

    async def _update_current_version(
        self, connection: AsyncConnection, table_id: int, values: Mapping[str, object]
    ) -> None:
        await connection.execute(
            update(table_metadata)
            .where(table_metadata.c.table_id == table_id, _is_current(table_id))
            .values(dict(values))
        )

    async def _require_free_location(self, connection: AsyncConnection, table_id: int, location: str) -> None:
        """Raises Conflict if another table's location is the same, contains this one, or is inside it.

        Call `_lock_locations` first. Locations are compared as they are written, which is canonical for all tables
        that come through the commands and the catalog.
        """
        wanted, other = location.rstrip("/") + "/", tables.c.location
        overlaps = (
            (func.substr(other + "/", 1, len(wanted)) == wanted)
            | (func.substr(literal(wanted), 1, func.length(other) + 1) == other + "/")
        )  # fmt: skip
        query = select(tables.c.database, tables.c.name, other).where(tables.c.id != table_id, overlaps).limit(1)
        found = (await connection.execute(query)).first()
        if found is not None:
            name = f"{found[0]}.{found[1]}"
            raise Conflict(f"{location} shares files with {name} at {found[2]}", [name])

    async def drop_table(self, table_id: int, *, purge: bool = False) -> None:
        validation.integer("table_id", table_id)
        async with self._transaction() as connection:
            await self._drop(connection, table_id, purge=purge)

    async def _drop(self, connection: AsyncConnection, table_id: int, *, purge: bool) -> None:
        locked = select(tables.c.id).where(tables.c.id == table_id).with_for_update()
        if (await connection.execute(locked)).first() is None:
            raise NotFound(f"table {table_id} does not exist")
        if purge:
            await self._purge_files(connection, table_id)
        await connection.execute(delete(tables).where(tables.c.id == table_id))

    async def _purge_files(self, connection: AsyncConnection, table_id: int) -> None:
        now, after = self._clock.now_ms(), 0
        deletes = select_rows(TableDeleteFile).where(table_delete_files.c.table_id == table_id)
        listed = deletion_rows(
            [TableDeleteFile(*row) for row in await connection.execute(deletes)], "table dropped", now
        )
        await self._insert_many(connection, files_awaiting_deletion, DELETION_COLUMNS, listed)
        of_table = select_rows(TableFile).where(table_files.c.table_id == table_id).order_by(table_files.c.id)
        while True:
            page = await connection.execute(of_table.where(table_files.c.id > after).limit(PAGE))
            files = [TableFile(*row) for row in page]
            if not files:
                return
            rows = [deletion_row(file, "table dropped", now) for file in files]
            await self._insert_many(connection, files_awaiting_deletion, DELETION_COLUMNS, rows)
            after = files[-1].id

    async def add_schema_version(self, table_id: int, draft: TableDraft, *, expected: int) -> TableMetadata:
        validation.integer("table_id", table_id)
        validation.integer("expected", expected, 1, validation.MAX_INT32 - 1)
        validate([draft])
        now = self._clock.now_ms()
        try:
            async with self._transaction() as connection:
                return await self._add_version(connection, table_id, draft, expected, now)
        except AlreadyExists:
            raise Conflict(f"table {table_id} got schema version {expected + 1} concurrently") from None

    async def _add_version(
        self, connection: AsyncConnection, table_id: int, draft: TableDraft, expected: int, now: int
    ) -> TableMetadata:
        locked = update(tables).where(tables.c.id == table_id).values(updated_at=now)
        if not (await connection.execute(locked)).rowcount:
            raise NotFound(f"table {table_id} does not exist")
        current = select(func.max(table_metadata.c.schema_version)).where(table_metadata.c.table_id == table_id)
        version = (await connection.execute(current)).scalar_one()
        if version != expected:
            raise Conflict(f"table {table_id} has schema version {version}, not {expected}", [str(version)])
        return await self._insert_version(connection, table_id, expected + 1, draft, now)

    async def get_table_metadata(self, table_id: int, schema_version: int | None = None) -> TableMetadata | None:
        validation.integer("table_id", table_id)
        validation.optional("schema_version", schema_version, validation.integer32)
        query = select_rows(TableMetadata).where(table_metadata.c.table_id == table_id)
        if schema_version is None:
            query = query.order_by(table_metadata.c.schema_version.desc()).limit(1)
        else:
            query = query.where(table_metadata.c.schema_version == schema_version)
        return await self._row(TableMetadata, query)

    async def list_table_metadata(self, table_id: int) -> list[TableMetadata]:
        validation.integer("table_id", table_id)
        query = select_rows(TableMetadata).where(table_metadata.c.table_id == table_id)
        return await self._rows(TableMetadata, query.order_by(table_metadata.c.schema_version))


DELETION_COLUMNS = ("table_id", "file_path", "file_size", "reason", "file", "removed_at")


def deletion_rows(
    files: Sequence[TableDeleteFile], reason: str, now: int
) -> list[tuple[int, str, int, str, JsonText, int]]:
    """Returns rows for delete files. A Puffin file is left out: deletion vectors that stay may share it."""
    return [deletion_row(file, reason, now) for file in files if file.content_offset == 0]


def deletion_row(file: TableFile | TableDeleteFile, reason: str, now: int) -> tuple[int, str, int, str, JsonText, int]:
    """Returns the row of a removed file in `files_awaiting_deletion`."""
    return (file.table_id, file.file_path, file.file_size, reason, to_json_text(file), now)


def _version(table_id: int, version: int, draft: TableDraft, now: int) -> dict[str, object]:
    times = {"last_modified": now, "created_at": now, "updated_at": now}
    return {"table_id": table_id, "schema_version": version, **msgspec.structs.asdict(draft), **times}


def _is_current(table_id: int) -> ColumnElement[bool]:
    newest = select(func.max(table_metadata.c.schema_version)).where(table_metadata.c.table_id == table_id)
    return table_metadata.c.schema_version == newest.scalar_subquery()
