"""Tables side by side: what a client does to one never takes files or rows of another."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from aiohttp import ClientSession
from pyiceberg.table.update import AddSnapshotUpdate

from astha.subscribers.context import LakeSettings
from components.lib.lake.iceberg import SnapshotChange, TableCommit
from components.lib.lake.iceberg.catalog import NAME
from components.lib.lake.iceberg.stamp import TAG
from registry.contract import MetadataStore
from registry.inputs import CatalogCommit
from registry.models import UploadIntent
from tests.delete_files import position_deletes
from tests.integration.components.commands.catalog.conftest import NEW, ROWS, ask
from tests.integration.components.commands.catalog.test_commits import (
    metadata_files,
    properties,
    property_commit,
    snapshot,
)
from tests.integration.components.commands.catalog.test_writers import client, rows_of
from tests.samples import TABLE


async def loaded(http: ClientSession, space: str, table: str) -> dict[str, Any]:
    found: dict[str, Any] = (await ask(http, "GET", f"{space}/tables/{table}"))[1]
    return found


async def append(space: str, table: str) -> None:
    address = space.removesuffix("/v1/namespaces/sales")
    await client(address, lambda catalog: catalog.load_table(f"sales.{table}").append(ROWS.select(["id"])))


def read(location: str) -> bytes:
    return Path(location.removeprefix("file://")).read_bytes()


def write(location: str, content: bytes) -> None:
    Path(location.removeprefix("file://")).write_bytes(content)


async def intents(store: MetadataStore) -> set[str]:
    return {intent.path for intent in await rows_of(store, UploadIntent)}


@pytest.mark.parametrize("name", ["write.metadata.path", "write.data.path"])
@pytest.mark.parametrize("below", ["", "/metadata", "/.."])
async def test_files_are_not_written_where_another_table_is(
    served: str, http: ClientSession, lake: LakeSettings, name: str, below: str
) -> None:
    taken = f"file:{lake.warehouse}/sales/returns{below}"
    status, error = await ask(http, "POST", f"{served}/tables/orders", json=property_commit(name, taken))
    assert (status, error["error"]["type"]) == (400, "BadRequestException")
    assert name in error["error"]["message"]
    own = f"file:{lake.warehouse}/sales/orders/other"
    assert (await ask(http, "POST", f"{served}/tables/orders", json=property_commit(name, own)))[0] == 200
    free = f"file:{lake.warehouse}/apart"
    assert (await ask(http, "POST", f"{served}/tables/orders", json=property_commit(name, free)))[0] == 200
    status, _ = await ask(http, "POST", f"{served}/tables/returns", json=property_commit(name, free))
    assert (status == 400) is (name == "write.metadata.path"), "the metadata of sales.orders is there"


async def test_a_snapshot_of_another_table_is_refused(served: str, http: ClientSession, lake: LakeSettings) -> None:
    await append(served, "returns")
    (theirs,) = (await loaded(http, served, "returns"))["metadata"]["snapshots"]
    for path in (theirs["manifest-list"], theirs["manifest-list"].replace("file://", "file:")):
        body = snapshot(path)
        del body["updates"][1]  # `main` does not move, so no manifest is read
        status, error = await ask(http, "POST", f"{served}/tables/orders", json=body)
        assert status == 400, error
        assert "is inside the location of sales.returns" in error["error"]["message"]


async def test_a_purge_leaves_the_files_of_other_tables(
    served: str, http: ClientSession, store: MetadataStore, lake: LakeSettings
) -> None:
    """Of a table whose metadata was made elsewhere: it names the manifests and metadata of another one."""
    await append(served, "returns")
    await append(served, "orders")
    theirs = await loaded(http, served, "returns")
    ours = await loaded(http, served, "orders")
    forged = ours["metadata"]
    forged["snapshots"].append({**theirs["metadata"]["snapshots"][0], "snapshot-id": 77})
    forged["metadata-log"].append(
        {"timestamp-ms": forged["last-updated-ms"], "metadata-file": theirs["metadata-location"]}
    )
    forged["properties"]["write.metadata.path"] = theirs["metadata-location"].rpartition("/")[0]
    write(ours["metadata-location"], msgspec.json.encode(forged))
    current = await restarted(store, ours["metadata-location"])
    status, body = await ask(http, "DELETE", f"{served}/tables/orders?purgeRequested=true")
    assert status == 204, body
    found = await intents(store)
    assert {current, ours["metadata"]["snapshots"][0]["manifest-list"]} <= found
    assert not [path for path in found if "/sales/returns/" in path]


async def restarted(store: MetadataStore, location: str) -> str:
    """Moves the pointer to a copy of the file, which is returned: the catalog keeps what it has read."""
    table = await store.get_table("sales", "orders")
    assert table is not None
    copy = location.replace(".metadata.json", "-2.metadata.json")
    write(copy, read(location))
    await store.commit_catalog(
        [
            CatalogCommit(
                catalog=NAME,
                namespace="sales",
                name="orders",
                expected=location,
                location=copy,
                table_id=table.id,
                operation="metadata",
            )
        ]
    )
    return copy


async def test_a_registered_log_names_only_files_of_the_table(
    served: str, http: ClientSession, lake: LakeSettings
) -> None:
    theirs = await loaded(http, served, "returns")
    place = f"file://{lake.warehouse}/sales/new"
    entries = [theirs["metadata-location"], f"{place}/metadata/0.metadata.json"]
    forged = {
        **theirs["metadata"],
        "location": place,
        "table-uuid": str(uuid4()),
        "metadata-log": [{"timestamp-ms": 1, "metadata-file": path} for path in entries],
    }
    file = Path(lake.warehouse) / "sales/new/metadata/1.metadata.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(msgspec.json.encode(forged))
    body = {"name": "new", "metadata-location": f"file://{file}"}
    status, found = await ask(http, "POST", f"{served}/register", json=body)
    assert status == 200, found
    assert [entry["metadata-file"] for entry in found["metadata"]["metadata-log"]] == entries[1:]


async def test_files_of_another_table_are_found_in_every_spelling(served: str, http: ClientSession) -> None:
    address = served.removesuffix("/v1/namespaces/sales")
    await append(served, "orders")

    def steal(catalog: Any, spelling: str) -> None:
        (task,) = catalog.load_table("sales.orders").scan().plan_files()
        path = task.file.file_path.replace("file://", spelling)
        catalog.load_table("sales.returns").add_files([path], check_duplicate_files=False)

    for spelling in ("file:", ""):
        with pytest.raises(Exception, match=r"is inside the location of sales\.orders"):
            await client(address, partial(steal, spelling=spelling))


@pytest.mark.parametrize("purge", ["true", "false"])
async def test_a_drop_never_takes_another_table_of_the_name(
    served: str, http: ClientSession, store: MetadataStore, purge: str
) -> None:
    """The operator has renamed the table, and the Iceberg updater has not followed yet."""
    renamed = await store.get_table("sales", "orders")
    assert renamed is not None
    await store.alter_table(renamed.id, name="former")
    new = await store.create_table("sales", "orders", "file:///nowhere/orders", TABLE)
    for request in (
        ask(http, "DELETE", f"{served}/tables/orders?purgeRequested={purge}"),
        ask(
            http,
            "POST",
            served.replace("namespaces/sales", "tables/rename"),
            json={
                "source": {"namespace": ["sales"], "name": "orders"},
                "destination": {"namespace": ["sales"], "name": "stolen"},
            },
        ),
    ):
        status, error = await request
        assert (status, error["error"]["type"]) == (409, "CommitFailedException")
    assert await store.get_table("sales", "orders") == new
    assert not await intents(store)


async def test_a_table_is_not_created_around_the_tables_of_a_namespace(
    served: str, http: ClientSession, lake: LakeSettings
) -> None:
    base = served.removesuffix("/sales")
    await ask(http, "POST", base, json={"namespace": ["empty"]})
    for place in ("sales", "empty"):
        body = {**NEW, "name": "outer", "location": f"file:{lake.warehouse}/{place}"}
        status, error = await ask(http, "POST", f"{served}/tables", json=body)
        assert (status, error["error"]["type"]) == (400, "BadRequestException"), place
    outer = {**NEW, "name": "outer", "location": f"file:{lake.warehouse}/later"}
    assert (await ask(http, "POST", f"{served}/tables", json=outer))[0] == 200
    await ask(http, "POST", base, json={"namespace": ["later"]})
    status, found = await ask(http, "POST", f"{base}/later/tables", json={**NEW, "name": "inner"})
    assert status == 200
    assert not found["metadata"]["location"].startswith(f"file://{lake.warehouse}/later/")


async def test_an_engine_keeps_the_tags_of_the_snapshotter(
    served: str, http: ClientSession, store: MetadataStore, lake: LakeSettings, tables: Any
) -> None:
    await append(served, "orders")
    (made,) = (await loaded(http, served, "orders"))["metadata"]["snapshots"]
    number = made["snapshot-id"]

    def tag(table: Any) -> None:
        table.manage_snapshots().create_tag(number, "v1").commit()
        with table.transaction() as change:
            change.set_properties({f"{TAG}v1": f"1 {number}"})

    await asyncio.to_thread(lambda: tag(tables.load_table("sales.orders")))
    await append(served, "orders")
    before = metadata_files(lake)
    for update in (
        {"action": "remove-snapshot-ref", "ref-name": "v1"},
        {"action": "remove-snapshots", "snapshot-ids": [number]},
        {"action": "set-snapshot-ref", "ref-name": "v1", "type": "branch", "snapshot-id": number},
    ):
        body = {"requirements": [], "updates": [update]}
        status, error = await ask(http, "POST", f"{served}/tables/orders", json=body)
        assert (status, error["error"]["type"]) == (400, "BadRequestException"), update
        assert "astha snapshot expire" in error["error"]["message"]
    assert metadata_files(lake) == before
    assert (await properties(http, served))[f"{TAG}v1"] == f"1 {number}"


async def test_delete_files_of_another_table_are_refused(
    served: str, http: ClientSession, lake: LakeSettings, tables: Any
) -> None:
    """Whether they were there or not: they would be deleted with the table."""
    for name in ("orders", "returns"):
        await append(served, name)

    def manifest_list(place: str) -> str:
        """Writes a snapshot of sales.orders with a delete file at the place, as an engine does."""
        table = tables.load_table("sales.orders")
        (task,) = table.scan().plan_files()
        draft = TableCommit(table)
        deletes = position_deletes(Path(lake.warehouse) / "sales" / place / "d.parquet", {task.file.file_path: [0]})
        draft.add_snapshot(SnapshotChange(deletes_added=[deletes]), {})
        (added,) = (update.snapshot for update in draft.updates if isinstance(update, AddSnapshotUpdate))
        return str(added.manifest_list)

    for place, status in (("returns/data", 400), ("orders/data", 200)):
        body = snapshot(await asyncio.to_thread(manifest_list, place))
        body["updates"][0]["snapshot"] |= {
            "sequence-number": 2,
            "parent-snapshot-id": (await loaded(http, served, "orders"))["metadata"]["current-snapshot-id"],
            "summary": {"operation": "delete"},
        }
        found, error = await ask(http, "POST", f"{served}/tables/orders", json=body)
        assert found == status, error
        if status == 400:
            assert "is inside the location of sales.returns" in error["error"]["message"]


async def test_a_table_without_stamp_is_not_dropped_in_place_of_the_registrys(
    served: str, http: ClientSession, store: MetadataStore, tables: Any, lake: LakeSettings
) -> None:
    """Another tool has made it in the catalog, under the name of a table of the registry."""
    place = f"file://{lake.warehouse}/sales/foreign"
    await asyncio.to_thread(lambda: tables.create_table("sales.foreign", ROWS.schema, location=place))
    own = await store.create_table("sales", "foreign", "file:///nowhere/foreign", TABLE)
    renamed = {
        "source": {"namespace": ["sales"], "name": "foreign"},
        "destination": {"namespace": ["sales"], "name": "stolen"},
    }
    for request in (
        ask(http, "DELETE", f"{served}/tables/foreign"),
        ask(http, "DELETE", f"{served}/tables/foreign?purgeRequested=true"),
        ask(http, "POST", served.replace("namespaces/sales", "tables/rename"), json=renamed),
    ):
        status, error = await request
        assert (status, error["error"]["type"]) == (409, "CommitFailedException")
        assert "another table named sales.foreign" in error["error"]["message"]
    assert await store.get_table("sales", "foreign") == own
    assert (await ask(http, "HEAD", f"{served}/tables/foreign"))[0] == 204
    assert not await intents(store)
