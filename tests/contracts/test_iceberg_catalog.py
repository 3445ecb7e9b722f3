"""The Iceberg catalog in the registry: rows as PyIceberg's SQL catalog and JDBC catalogs write them."""

from __future__ import annotations

import pytest

from registry.contract import MetadataStore
from registry.models import CatalogNamespace, CatalogTable
from tests.contracts.bad_input import Refused


def entry(namespace: str, name: str, kind: str | None = "TABLE", catalog: str = "astha") -> CatalogTable:
    return CatalogTable(catalog, namespace, name, f"s3://lake/{namespace}/{name}.json", None, kind)


@pytest.fixture(autouse=True)
async def _filled(store: MetadataStore) -> None:
    async with store.load() as load:
        await load.add([entry("sales", name) for name in ("orders", "items", "returns")])
        await load.add([entry("eu.shop", "visits", kind=None), entry("eu.shop", "summary", kind="VIEW")])
        await load.add([entry("sales", "orders", catalog="other"), entry("hidden", "orders", catalog="other")])
        await load.add(
            [CatalogNamespace("astha", "empty", "owner", "ann"), CatalogNamespace("astha", "empty", "x", "")]
        )


async def test_a_table_is_found_by_catalog_namespace_and_name(store: MetadataStore) -> None:
    assert await store.get_catalog_table("astha", "sales", "orders") == entry("sales", "orders")
    assert await store.get_catalog_table("other", "sales", "orders") == entry("sales", "orders", catalog="other")
    assert await store.get_catalog_table("astha", "sales", "visits") is None
    assert await store.get_catalog_table("astha", "eu.shop", "visits") == entry("eu.shop", "visits", kind=None)


async def test_a_view_is_not_a_table(store: MetadataStore) -> None:
    assert await store.get_catalog_table("astha", "eu.shop", "summary") is None
    assert [row.table_name for row in await store.list_catalog_tables("astha", "eu.shop")] == ["visits"]


async def test_tables_are_listed_in_pages(store: MetadataStore) -> None:
    first = await store.list_catalog_tables("astha", "sales", limit=2)
    rest = await store.list_catalog_tables("astha", "sales", after=first[-1].table_name, limit=2)
    assert [row.table_name for row in (*first, *rest)] == ["items", "orders", "returns"]
    assert await store.list_catalog_tables("astha", "nothing") == []


async def test_a_namespace_exists_by_its_tables_or_its_properties(store: MetadataStore) -> None:
    assert await store.list_catalog_namespaces("astha") == ["empty", "eu.shop", "sales"]
    assert await store.get_namespace_properties("astha", "empty") == {"owner": "ann", "x": ""}
    assert await store.get_namespace_properties("astha", "sales") == {}


@pytest.mark.parametrize("value", ["", "a\0b", 1])
async def test_bad_names_are_refused(store: MetadataStore, refused: Refused, value: str) -> None:
    await refused(store.get_catalog_table(value, "sales", "orders"), "catalog", value)
    await refused(store.get_catalog_table("astha", value, "orders"), "namespace", value)
    await refused(store.get_catalog_table("astha", "sales", value), "name", value)
    await refused(store.list_catalog_tables("astha", value), "namespace", value)
    await refused(store.list_catalog_namespaces(value), "catalog", value)
    await refused(store.get_namespace_properties("astha", value), "namespace", value)
