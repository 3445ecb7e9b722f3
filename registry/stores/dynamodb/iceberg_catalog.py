"""The Iceberg catalog: which namespaces and tables it has, and where each table's metadata is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from registry import validation
from registry.contract import PAGE
from registry.errors import AlreadyCommitted, AlreadyExists, Conflict, NotFound
from registry.models import CatalogNamespace, CatalogRequest, CatalogTable, LakeTable, NamespaceChange
from registry.stores.dynamodb.base import DynamoBase
from registry.stores.dynamodb.reader import Range, Reader
from registry.stores.dynamodb.transaction import Transaction
from registry.stores.sql.catalog_requests import KEPT_REQUESTS_MS, PRUNED_AT_ONCE, check_request
from registry.stores.sql.iceberg_catalog import EXISTS, check_names, check_properties


class DynamoIcebergCatalog(DynamoBase):
    async def get_catalog_table(self, catalog: str, namespace: str, name: str) -> CatalogTable | None:
        check_names(catalog=catalog, namespace=namespace, name=name)
        row = await self._get(CatalogTable, catalog, namespace, name)
        return row if row is not None and is_table(row) else None

    async def list_catalog_tables(
        self, catalog: str, namespace: str, *, after: str = "", limit: int = PAGE
    ) -> list[CatalogTable]:
        check_names(catalog=catalog, namespace=namespace)
        validation.text("after", after)
        validation.integer("limit", limit, 1)
        within = Range(prefix=(catalog, namespace), after=(catalog, namespace, after) if after else None)
        return await self._read(lambda reader: reader.rows(CatalogTable, within=within, where=is_table, limit=limit))

    async def list_catalog_namespaces(self, catalog: str) -> list[str]:
        check_names(catalog=catalog)
        within = Range(prefix=(catalog,))

        async def read(reader: Reader) -> list[str]:
            tables = await reader.rows(CatalogTable, within=within, where=is_table)
            properties = await reader.rows(CatalogNamespace, within=within)
            # Of the registry's tables, those that the Iceberg updater has not created there yet matter.
            registered = await reader.rows(LakeTable)
            return sorted(
                {row.table_namespace for row in tables}
                | {row.namespace for row in properties}
                | {row.database for row in registered}
            )

        return await self._read(read)

    async def get_namespace_properties(self, catalog: str, namespace: str) -> dict[str, str]:
        check_names(catalog=catalog, namespace=namespace)
        rows = await self._read(lambda reader: reader.rows(CatalogNamespace, within=Range(prefix=(catalog, namespace))))
        return {row.property_key: row.property_value for row in rows if row.property_key != EXISTS}

    async def create_catalog_namespace(
        self,
        catalog: str,
        namespace: str,
        properties: Mapping[str, str],
        *,
        request: CatalogRequest | None = None,
    ) -> None:
        check_properties(catalog, namespace, properties, ())
        check_request(request)

        async def change(tx: Transaction) -> None:
            await self._record_request(tx, request)
            if await self._uses(tx, catalog, namespace):
                raise AlreadyExists(f"namespace {namespace} exists")
            for key, value in {**properties, EXISTS: "true"}.items():
                tx.insert(CatalogNamespace(catalog, namespace, key, value))

        await self._transact(change)

    async def update_catalog_namespace(
        self,
        catalog: str,
        namespace: str,
        *,
        set: Mapping[str, str],  # noqa: A002  (the protocol's word)
        remove: Sequence[str],
        request: CatalogRequest | None = None,
    ) -> NamespaceChange:
        check_properties(catalog, namespace, set, remove)
        check_request(request)

        async def change(tx: Transaction) -> NamespaceChange:
            await self._record_request(tx, request)
            if not await self._uses(tx, catalog, namespace):
                raise NotFound(f"namespace {namespace} does not exist")
            rows = await tx.rows(CatalogNamespace, within=Range(prefix=(catalog, namespace)))
            old = {row.property_key: row for row in rows}
            for key in remove:
                if key in old:
                    tx.delete(old[key])
            for key, value in {**({} if EXISTS in old else {EXISTS: "true"}), **set}.items():
                row = CatalogNamespace(catalog, namespace, key, value)
                if key in old:
                    tx.update(old[key], row)
                else:
                    tx.insert(row)
            return NamespaceChange(sorted(set), sorted(old.keys() & {*remove}), sorted({*remove} - old.keys()))

        return await self._transact(change)

    async def drop_catalog_namespace(
        self, catalog: str, namespace: str, *, request: CatalogRequest | None = None
    ) -> None:
        check_names(catalog=catalog, namespace=namespace)
        check_request(request)

        async def change(tx: Transaction) -> None:
            await self._record_request(tx, request)
            uses = await self._uses(tx, catalog, namespace)
            if not uses:
                raise NotFound(f"namespace {namespace} does not exist")
            if uses != {"properties"}:
                raise Conflict(f"namespace {namespace} is not empty: it has {' and '.join(sorted(uses))}")
            for row in await tx.rows(CatalogNamespace, within=Range(prefix=(catalog, namespace))):
                tx.delete(row)

        await self._transact(change)

    async def _uses(self, tx: Transaction, catalog: str, namespace: str) -> set[str]:
        """Returns what makes the namespace exist: ``properties``, ``tables``, ``namespaces``."""
        within = Range(prefix=(catalog,))
        properties = {row.namespace for row in await tx.rows(CatalogNamespace, within=within)}
        tables = {row.table_namespace for row in await tx.rows(CatalogTable, within=within)}
        tables |= {row.database for row in await tx.rows(LakeTable)}
        below = any(one.startswith(f"{namespace}.") for one in properties | tables)
        found = {"properties": namespace in properties, "tables": namespace in tables, "namespaces": below}
        return {what for what, there in found.items() if there}

    async def get_catalog_request(self, request_key: str) -> CatalogRequest | None:
        validation.catalog_name("request_key", request_key)
        return await self._get(CatalogRequest, request_key)

    async def _record_request(self, tx: Transaction, request: CatalogRequest | None) -> None:
        if request is None:
            return
        if await tx.get(CatalogRequest, request.request_key) is not None:
            raise AlreadyCommitted(f"the request {request.request_key} was committed before")
        tx.insert(CatalogRequest(request.request_key, request.fingerprint, request.response, tx.now))

    async def _prune_requests(self, tx: Transaction) -> None:
        until = tx.now - KEPT_REQUESTS_MS
        if until < 0:
            return
        within = Range(stop=(until + 1, ""))
        for row in await tx.pointed(CatalogRequest, "age", within=within, limit=PRUNED_AT_ONCE):
            if row.created_at <= until:
                tx.delete(row)


def is_table(row: CatalogTable) -> bool:
    """Older catalogs leave the type out; others keep their views in the same table."""
    return row.iceberg_type in (None, "TABLE")
