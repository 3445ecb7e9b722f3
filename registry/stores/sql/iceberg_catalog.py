"""The Iceberg catalog: which namespaces and tables it has, and where each table's metadata is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import CompoundSelect, Select, bindparam, delete, select, union
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.contract import PAGE
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound
from registry.models import CatalogNamespace, CatalogRequest, CatalogTable, NamespaceChange
from registry.schema import iceberg_namespace_properties, iceberg_tables, tables
from registry.stores.sql.base import select_rows
from registry.stores.sql.catalog_requests import SqlCatalogRequests, check_request

_tables, _properties = iceberg_tables.c, iceberg_namespace_properties.c

IS_TABLE = _tables.iceberg_type.is_(None) | (_tables.iceberg_type == "TABLE")
"""Older catalogs leave the type out; others keep their views in the same table."""

_GET_TABLE = select_rows(CatalogTable).where(
    _tables.catalog_name == bindparam("catalog"),
    _tables.table_namespace == bindparam("namespace"),
    _tables.table_name == bindparam("name"),
    IS_TABLE,
)

EXISTS = "exists"
"""The property of a namespace without others. PyIceberg's SQL catalog and Iceberg's JDBC catalog write it, too."""


class SqlIcebergCatalog(SqlCatalogRequests):
    async def get_catalog_table(self, catalog: str, namespace: str, name: str) -> CatalogTable | None:
        check_names(catalog=catalog, namespace=namespace, name=name)
        return await self._row(CatalogTable, _GET_TABLE, catalog=catalog, namespace=namespace, name=name)

    async def list_catalog_tables(
        self, catalog: str, namespace: str, *, after: str = "", limit: int = PAGE
    ) -> list[CatalogTable]:
        check_names(catalog=catalog, namespace=namespace)
        validation.text("after", after)
        validation.integer("limit", limit, 1)
        query = (
            select_rows(CatalogTable)
            .where(_tables.catalog_name == catalog, _tables.table_namespace == namespace, _tables.table_name > after)
            .where(IS_TABLE)
            .order_by(_tables.table_name)
            .limit(limit)
        )
        return await self._rows(CatalogTable, query)

    async def list_catalog_namespaces(self, catalog: str) -> list[str]:
        check_names(catalog=catalog)
        query = union(
            select(_tables.table_namespace.label("namespace")).where(_tables.catalog_name == catalog, IS_TABLE),
            select(_properties.namespace).where(_properties.catalog_name == catalog),
            select(tables.c.database),  # a table that the Iceberg updater has not created there yet
        )
        async with self._autocommit() as connection:
            return sorted((await connection.execute(query)).scalars())

    async def get_namespace_properties(self, catalog: str, namespace: str) -> dict[str, str]:
        check_names(catalog=catalog, namespace=namespace)
        query = select_rows(CatalogNamespace).where(
            _properties.catalog_name == catalog, _properties.namespace == namespace
        )
        rows = await self._rows(CatalogNamespace, query)
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
        async with self._transaction() as connection:
            await self._record_request(connection, request, self._clock.now_ms())
            try:
                if await self._uses(connection, catalog, namespace):
                    raise AlreadyExists("it has tables, properties or namespaces")
                with self._translating_errors():
                    await self._set_properties(connection, catalog, namespace, {**properties, EXISTS: "true"})
            except AlreadyExists:
                raise AlreadyExists(f"namespace {namespace} exists") from None

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
        async with self._transaction() as connection:
            await self._record_request(connection, request, self._clock.now_ms())
            if not await self._uses(connection, catalog, namespace):
                raise NotFound(f"namespace {namespace} does not exist")
            gone = sorted({*remove, *set})
            own = _properties.catalog_name == catalog, _properties.namespace == namespace
            removed: list[str] = []
            if gone:
                statement = delete(iceberg_namespace_properties).where(*own, _properties.property_key.in_(gone))
                removed = list((await connection.execute(statement.returning(_properties.property_key))).scalars())
            await self._set_properties(connection, catalog, namespace, set)
            await self._keep_namespace(connection, catalog, namespace)
        found = sorted({*removed} & {*remove})
        return NamespaceChange(sorted(set), found, sorted({*remove} - {*found}))

    async def drop_catalog_namespace(
        self, catalog: str, namespace: str, *, request: CatalogRequest | None = None
    ) -> None:
        check_names(catalog=catalog, namespace=namespace)
        check_request(request)
        own = _properties.catalog_name == catalog, _properties.namespace == namespace
        async with self._transaction() as connection:
            await self._record_request(connection, request, self._clock.now_ms())
            uses = await self._uses(connection, catalog, namespace)
            if not uses:
                raise NotFound(f"namespace {namespace} does not exist")
            if uses != {"properties"}:
                raise Conflict(f"namespace {namespace} is not empty: it has {' and '.join(sorted(uses))}")
            await connection.execute(delete(iceberg_namespace_properties).where(*own))

    async def _uses(self, connection: AsyncConnection, catalog: str, namespace: str) -> set[str]:
        """Returns what makes the namespace exist: ``properties``, ``tables``, ``namespaces``."""
        below = f"{namespace}."
        queries: dict[str, Select[Any] | CompoundSelect[Any]] = {
            "properties": select(_properties.namespace)
            .where(_properties.catalog_name == catalog, _properties.namespace == namespace)
            .limit(1),
            "tables": union(
                select(_tables.table_namespace).where(
                    _tables.catalog_name == catalog, _tables.table_namespace == namespace
                ),
                select(tables.c.database).where(tables.c.database == namespace),
            ),
            "namespaces": union(
                select(_tables.table_namespace).where(
                    _tables.catalog_name == catalog, _tables.table_namespace.startswith(below, autoescape=True)
                ),
                select(_properties.namespace).where(
                    _properties.catalog_name == catalog, _properties.namespace.startswith(below, autoescape=True)
                ),
                select(tables.c.database).where(tables.c.database.startswith(below, autoescape=True)),
            ),
        }
        return {what for what, query in queries.items() if (await connection.execute(query)).first() is not None}

    async def _set_properties(
        self, connection: AsyncConnection, catalog: str, namespace: str, properties: Mapping[str, str]
    ) -> None:
        columns = tuple(CatalogNamespace.__struct_fields__)
        rows = [(catalog, namespace, key, value) for key, value in sorted(properties.items())]
        await self._insert_many(connection, iceberg_namespace_properties, columns, rows)

    async def _keep_namespace(self, connection: AsyncConnection, catalog: str, namespace: str) -> None:
        """A namespace that has lost its last property still exists."""
        values = {"catalog_name": catalog, "namespace": namespace, "property_key": EXISTS, "property_value": "true"}
        insert = self._insert(iceberg_namespace_properties).values(values)
        await connection.execute(insert.on_conflict_do_nothing())


def check_names(**names: str) -> None:
    for field, value in names.items():
        validation.non_empty(field, value)


def check_properties(catalog: str, namespace: str, properties: Mapping[str, str], remove: Sequence[str]) -> None:
    check_names(catalog=catalog, namespace=namespace)
    validation.database_name("namespace", namespace)
    for key, value in properties.items():
        validation.catalog_name("properties", key)
        validation.property_value("properties", value)
    for key in remove:
        validation.catalog_name("remove", key)
    reserved = {*properties, *remove} & {EXISTS}
    if reserved:
        raise Invalid("properties", EXISTS, "is reserved for the catalog")
    both = sorted({*properties} & {*remove})
    if both:
        raise Invalid("remove", both[0], "is set and removed in one call")
