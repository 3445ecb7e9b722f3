"""The pointers of Iceberg tables alone, for a catalog whose commits are registered otherwise: the Iceberg updater's."""

from __future__ import annotations

import msgspec

from registry.errors import AlreadyExists, NotFound
from registry.models import CatalogTable
from registry.stores.dynamodb.base import DynamoBase
from registry.stores.dynamodb.reader import Range
from registry.stores.dynamodb.transaction import Transaction


class DynamoCatalogPointers(DynamoBase):
    async def list_pointers(self, catalog: str) -> list[CatalogTable]:
        return await self._read(lambda reader: reader.rows(CatalogTable, within=Range(prefix=(catalog,))))

    async def get_pointer(self, catalog: str, namespace: str, name: str) -> str | None:
        row = await self._get(CatalogTable, catalog, namespace, name)
        return None if row is None else row.metadata_location

    async def move_pointer(self, catalog: str, namespace: str, name: str, expected: str | None, location: str) -> bool:
        """Returns False, and changes nothing, if the pointer is another one. ``expected`` is None for a new table."""

        async def change(tx: Transaction) -> bool:
            row = await tx.get(CatalogTable, catalog, namespace, name)
            if (None if row is None else row.metadata_location) != expected:
                return False
            if row is None:
                tx.insert(CatalogTable(catalog, namespace, name, location, None, "TABLE"))
            else:
                tx.replace(row, metadata_location=location, previous_metadata_location=expected)
            return True

        return await self._transact(change)

    async def remove_pointer(self, catalog: str, namespace: str, name: str) -> None:
        await self._transact(lambda tx: _removed(tx, catalog, namespace, name))

    async def rename_pointer(self, catalog: str, namespace: str, name: str, to_namespace: str, to_name: str) -> None:
        async def change(tx: Transaction) -> None:
            if await tx.get(CatalogTable, catalog, to_namespace, to_name) is not None:
                raise AlreadyExists(f"table {to_namespace}.{to_name} exists")
            old = await _removed(tx, catalog, namespace, name)
            tx.insert(msgspec.structs.replace(old, table_namespace=to_namespace, table_name=to_name))

        await self._transact(change)


async def _removed(tx: Transaction, catalog: str, namespace: str, name: str) -> CatalogTable:
    row = await tx.get(CatalogTable, catalog, namespace, name)
    if row is None:
        raise NotFound(f"the catalog {catalog} has no table {namespace}.{name}")
    tx.delete(row)
    return row
