"""Lake tables and their schema versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from registry import validation
from registry.contract import PAGE
from registry.errors import AlreadyExists, Conflict, NotFound
from registry.inputs import TableDraft, validate
from registry.json_text import JsonValue, to_json_text
from registry.models import (
    IcebergCommit,
    LakeTable,
    TableDeleteFile,
    TableFile,
    TableInsert,
    TableMetadata,
    TableOrder,
    TablePage,
    TableSnapshot,
    TableStats,
    TableStatus,
)
from registry.stores.dynamodb.reader import Range, Reader
from registry.stores.dynamodb.transaction import Taken, Transaction
from registry.stores.dynamodb.upload_intents import DynamoUploadIntents
from registry.stores.sql.tables import deletion_row, deletion_rows

_ORDER_KEYS: Mapping[TableOrder, Callable[[LakeTable], Any]] = {
    "name": lambda row: f"{row.database}.{row.name}",
    "files": lambda row: row.file_count,
    "size": lambda row: row.total_size,
    "rows": lambda row: row.row_count,
    "modified": lambda row: row.last_modified,
}
_OF_TABLE = (TableMetadata, TableFile, TableStats, TableSnapshot, IcebergCommit, TableDeleteFile, TableInsert)


class DynamoTables(DynamoUploadIntents):
    async def create_table(self, database: str, name: str, location: str, draft: TableDraft) -> LakeTable:
        validation.database_name("database", database)
        validation.table_name("name", name)
        validation.non_empty("location", location)
        validate([draft])

        async def change(tx: Transaction) -> LakeTable:
            table = await self._insert_table(tx, tx.new_id(LakeTable), database, name, location)
            self._insert_version(tx, table.id, 1, draft)
            return table

        return await self._transact(change)

    async def _insert_table(self, tx: Transaction, table_id: int, database: str, name: str, location: str) -> LakeTable:
        taken = await tx.find(LakeTable, "name", database, name) or await tx.get(LakeTable, table_id)
        if taken is not None:
            raise AlreadyExists(f"table {database}.{name} exists")
        now = tx.now
        return tx.insert(LakeTable(table_id, database, name, location, 0, 0, 0, now, "active", now, now))

    def _insert_version(self, tx: Transaction, table_id: int, version: int, draft: TableDraft) -> TableMetadata:
        row = TableMetadata(
            id=tx.new_id(TableMetadata), table_id=table_id, schema_version=version,
            last_modified=tx.now, created_at=tx.now, updated_at=tx.now, **msgspec.structs.asdict(draft),
        )  # fmt: skip
        return tx.insert(row)

    async def _table(self, tx: Transaction, table_id: int) -> LakeTable:
        table = await tx.get(LakeTable, table_id)
        if table is None:
            raise NotFound(f"table {table_id} does not exist")
        return table

    async def get_table(self, database: str, name: str) -> LakeTable | None:
        validation.name("database", database)
        validation.name("name", name)
        return await self._read(lambda reader: reader.find(LakeTable, "name", database, name))

    async def get_table_by_id(self, table_id: int) -> LakeTable | None:
        validation.integer("table_id", table_id)
        return await self._get(LakeTable, table_id)

    async def list_tables(self, database: str | None = None) -> list[LakeTable]:
        if database is not None:
            validation.name("database", database)
        rows = await self._read(
            lambda reader: reader.rows(LakeTable, where=lambda row: database in (None, row.database))
        )
        return sorted(rows, key=lambda row: (row.database, row.name))

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
        wanted, key_of = text.lower(), _ORDER_KEYS[order]
        rows = await self._read(
            lambda reader: reader.rows(LakeTable, where=lambda row: wanted in f"{row.database}.{row.name}".lower())
        )
        ranked = sorted(((key_of(row), row.id), row) for row in rows)
        if order != "name":
            ranked.reverse()
        left = [
            (place, row)
            for place, row in ranked
            if after is None or (place > after if order == "name" else place < after)
        ]
        page = left[:limit]
        return TablePage([row for _, row in page], len(rows), page[-1][0] if len(left) > limit else None)

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
        given = {"database": database, "name": name, "location": location, "status": status}
        changes = {column: value for column, value in given.items() if value is not None}

        async def change(tx: Transaction) -> LakeTable:
            table = tx.replace(await self._table(tx, table_id), **changes, updated_at=tx.now)
            followed: dict[str, object] = {"updated_at": tx.now}
            if properties is not None:
                followed |= {"properties": to_json_text(properties, "properties"), "last_modified": tx.now}
            if len(followed) > 1 or {"database", "name", "location"} & changes.keys():
                await self._update_current_version(tx, table_id, followed)
            return table

        try:
            return await self._transact(change)
        except Taken:
            raise AlreadyExists(f"another table is already named {name or database!r}") from None

    async def _current_version(self, reader: Reader, table_id: int) -> TableMetadata | None:
        newest = await reader.rows(TableMetadata, table_id, within=Range(backwards=True), limit=1)
        return newest[0] if newest else None

    async def _update_current_version(self, tx: Transaction, table_id: int, values: Mapping[str, object]) -> None:
        versions = await tx.rows(TableMetadata, table_id)
        if versions:
            tx.replace(versions[-1], **values)

    async def _require_free_location(self, tx: Transaction, table_id: int, location: str) -> None:
        """Raises Conflict if another table's location is the same, contains this one, or is inside it."""
        wanted = location.rstrip("/") + "/"
        for other in await tx.rows(LakeTable):
            theirs = other.location + "/"
            if other.id != table_id and (theirs.startswith(wanted) or wanted.startswith(theirs)):
                name = f"{other.database}.{other.name}"
                raise Conflict(f"{location} shares files with {name} at {other.location}", [name])

    async def drop_table(self, table_id: int, *, purge: bool = False) -> None:
        validation.integer("table_id", table_id)
        await self._transact(lambda tx: self._drop(tx, table_id, purge=purge))

    async def _drop(self, tx: Transaction, table_id: int, *, purge: bool) -> None:
        tx.delete(await self._table(tx, table_id))
        if purge:
            listed = deletion_rows(await tx.rows(TableDeleteFile, table_id), "table dropped", tx.now)
            files = await tx.rows(TableFile, table_id)
            await self._list_for_deletion(tx, listed + [deletion_row(file, "table dropped", tx.now) for file in files])
        for kind in _OF_TABLE:
            for row in await tx.rows(kind, table_id):
                tx.delete(row)

    async def add_schema_version(self, table_id: int, draft: TableDraft, *, expected: int) -> TableMetadata:
        validation.integer("table_id", table_id)
        validation.integer("expected", expected, 1, validation.MAX_INT32 - 1)
        validate([draft])
        return await self._transact(lambda tx: self._add_version(tx, table_id, draft, expected))

    async def _add_version(self, tx: Transaction, table_id: int, draft: TableDraft, expected: int) -> TableMetadata:
        tx.replace(await self._table(tx, table_id), updated_at=tx.now)
        current = await self._current_version(tx, table_id)
        version = None if current is None else current.schema_version
        if version != expected:
            raise Conflict(f"table {table_id} has schema version {version}, not {expected}", [str(version)])
        return self._insert_version(tx, table_id, expected + 1, draft)

    async def get_table_metadata(self, table_id: int, schema_version: int | None = None) -> TableMetadata | None:
        validation.integer("table_id", table_id)
        validation.optional("schema_version", schema_version, validation.integer32)
        if schema_version is None:
            return await self._read(lambda reader: self._current_version(reader, table_id))
        return await self._get(TableMetadata, table_id, schema_version)

    async def list_table_metadata(self, table_id: int) -> list[TableMetadata]:
        validation.integer("table_id", table_id)
        return await self._read(lambda reader: reader.rows(TableMetadata, table_id))
