"""Inserts with an id: recorded in the transaction that registers their files, so that a repetition changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.errors import AlreadyInserted
from registry.models import TableInsert
from registry.schema import table_inserts
from registry.stores.sql.base import SqlBase, select_rows


class SqlInserts(SqlBase):
    async def get_insert(self, table_id: int, insert_id: str) -> TableInsert | None:
        validation.integer("table_id", table_id)
        validation.catalog_name("insert_id", insert_id)
        column = table_inserts.c
        query = select_rows(TableInsert).where(column.table_id == table_id, column.insert_id == insert_id)
        return await self._row(TableInsert, query)

    async def _record_inserts(
        self, connection: AsyncConnection, inserts: Sequence[tuple[TableInsert, Sequence[str]]], now: int
    ) -> None:
        """``inserts`` are given with the paths of their files. Call it after the table was locked: a repetition waits
        there for the insert that it repeats, and finds it committed.
        """
        for record, paths in inserts:
            column = table_inserts.c
            key = column.table_id == record.table_id, column.insert_id == record.insert_id
            if (await connection.execute(select(column.insert_id).where(*key))).first() is not None:
                raise AlreadyInserted(f"table {record.table_id} has the insert {record.insert_id!r} already", paths)
            values = (record.table_id, record.insert_id, record.row_count, record.file_count, now)
            names = TableInsert.__struct_fields__
            await connection.execute(insert(table_inserts).values(dict(zip(names, values, strict=True))))
