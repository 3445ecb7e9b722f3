"""DynamoDB Local, killed, and registries copied to and from it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from registry.connect import open_store
from registry.copy import copy_registry
from registry.dynamodb_url import parse_endpoint
from registry.engines import StoreSettings
from registry.errors import Invalid, SchemaMismatch, SchemaTooNew, Unavailable
from registry.migrate import migrate
from registry.stores.dynamodb.admin import Capacity
from registry.stores.dynamodb.client import DynamoClient
from registry.stores.dynamodb.opening import create, open_registry
from registry.stores.dynamodb.state import REGISTRY, VERSION
from registry.stores.dynamodb.store import DynamoStore
from tests.contracts.contents import contents
from tests.samples import ONE_OF_EACH, segment
from tests.servers.dynamodb import DynamoServer
from tests.waiting import eventually


@pytest.mark.long
async def test_what_was_acknowledged_survives_kills_of_the_server(tmp_path: Path) -> None:
    """DynamoDB Local responds before a transaction is on disk. It is there once the next request is answered."""
    with DynamoServer(tmp_path) as server:
        url = server.url("registry")
        await create(url)
        async with opened_registry(url) as store:
            await store.create_topic("orders", 1)
            acknowledged: list[int] = []
            for round_ in range(3):
                writing = asyncio.create_task(_write(store, acknowledged, 1_000 * round_))
                await eventually(partial(_reached, acknowledged, len(acknowledged) + 5), "acknowledged writes")
                durable = set(acknowledged)
                await store.position()
                server.kill()
                with contextlib.suppress(Unavailable):
                    await writing
                server.start()
                found = {row.base_offset for row in await store.get_segments("orders", 0)}
                assert durable <= found
                assert found <= {*acknowledged, *(offset + 10 for offset in acknowledged), 1_000 * round_}


@asynccontextmanager
async def opened_registry(url: str) -> AsyncIterator[DynamoStore]:
    store = await open_registry(url)
    try:
        yield store
    finally:
        await store.close()


def _reached(acknowledged: list[int], wanted: int) -> bool:
    return len(acknowledged) >= wanted


async def _write(store: DynamoStore, acknowledged: list[int], start: int) -> None:
    for number in range(90):
        await store.add_segment(segment(start + 10 * number))
        acknowledged.append(start + 10 * number)


@pytest.mark.slow
async def test_a_registry_is_copied_to_dynamodb_and_back(
    sqlite_url: str, dynamodb_url: str, sqlite_template: Path, tmp_path: Path
) -> None:
    back_url = f"sqlite:///{shutil.copyfile(sqlite_template, tmp_path / 'back.db')}"
    source, target, back = await open_store(sqlite_url), await open_registry(dynamodb_url), await open_store(back_url)
    async with source.load() as load:
        for row in ONE_OF_EACH:
            await load.add([row])
    await source.create_topic("large", 300)
    there = await copy_registry(source, target)
    assert await copy_registry(target, back) == there
    for store in (target, back):
        found, expected = await contents(store), await contents(source)
        assert {table: found[table] for table in there} == {
            table: [row for row in expected[table] if table != "source_identity"] for table in there
        }
        await store.close()
    await source.close()


async def test_a_table_with_provisioned_capacity(dynamodb: DynamoServer) -> None:
    url = dynamodb.url("provisioned")
    await create(url, Capacity(mode="provisioned", read_units=5, write_units=7))
    await create(url, Capacity(mode="provisioned", read_units=5, write_units=7))  # changes nothing
    store = await open_registry(url)
    found = await store._client.call("describe_table")
    assert found["Table"]["ProvisionedThroughput"]["WriteCapacityUnits"] == 7
    ttl = await store._client.call("describe_time_to_live")
    assert ttl["TimeToLiveDescription"]["AttributeName"] == "expires"
    await store.close()


async def test_a_registry_that_does_not_exist(dynamodb: DynamoServer) -> None:
    with pytest.raises(SchemaMismatch, match="holds no registry"):
        await open_registry(dynamodb.url("missing"))


def test_urls() -> None:
    found = parse_endpoint("dynamodb://eu-central-1/astha")
    assert (found.region, found.table, found.url) == ("eu-central-1", "astha", None)
    assert parse_endpoint("dynamodb://local/astha?endpoint=http://127.0.0.1:8000").url == "http://127.0.0.1:8000"
    for url, said in (
        ("dynamodb://eu-central-1", "table"),
        ("dynamodb://eu-central-1/a", "table"),
        ("dynamodb:///astha", "REGION"),
        ("dynamodb://key:secret@eu-central-1/astha", "REGION"),
        ("dynamodb://eu-central-1/astha?end=x", "endpoint"),
    ):
        with pytest.raises(Invalid, match=said) as caught:
            parse_endpoint(url)
        assert "secret" not in str(caught.value)


async def test_a_missing_table_names_the_command_that_creates_it(dynamodb: DynamoServer) -> None:
    url = dynamodb.url("missing")
    with pytest.raises(SchemaMismatch, match="astha registry migrate"):
        await open_store(url)
    assert await asyncio.to_thread(lambda: migrate(url).state) == "current"
    assert await asyncio.to_thread(lambda: migrate(url).state) == "current"  # changes nothing
    store = await open_store(url)
    assert await store.list_topics() == []
    await store.close()


async def test_newer_items_are_refused(dynamodb_url: str) -> None:
    client = DynamoClient(parse_endpoint(dynamodb_url))
    item = await client.get(REGISTRY.key)
    assert item is not None
    await client.put_many([(REGISTRY.key, {**item.attributes, "version": VERSION + 1})])
    await client.close()
    with pytest.raises(SchemaTooNew):
        await open_store(dynamodb_url)


async def test_the_capacity_of_a_new_table_is_a_setting(dynamodb: DynamoServer) -> None:
    settings = StoreSettings(read_units=3, write_units=4)
    url = dynamodb.url("settings")
    await asyncio.to_thread(migrate, url, settings)
    client = DynamoClient(parse_endpoint(url))
    units = (await client.call("describe_table"))["Table"]["ProvisionedThroughput"]
    assert (units["ReadCapacityUnits"], units["WriteCapacityUnits"]) == (3, 4)
    await client.close()
    with pytest.raises(Invalid, match="write_units"):
        await asyncio.to_thread(migrate, dynamodb.url("settings2"), StoreSettings(read_units=3))


async def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("registry.stores.dynamodb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiobotocore", None)
    monkeypatch.setitem(sys.modules, "aiobotocore.config", None)
    with pytest.raises(Invalid, match=r"pip install 'astha\[dynamodb\]'"):
        await open_store("dynamodb://eu-central-1/astha")
