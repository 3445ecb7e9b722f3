"""Commits over HTTP: repeated, refused, hostile, of several tables, and with an outcome that is unknown."""

from __future__ import annotations

import asyncio
import io
import shutil
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from aiohttp import ClientSession

from astha.subscribers.context import LakeSettings
from components.lib.lake.iceberg import catalog as iceberg_catalog
from registry.contract import MetadataStore
from registry.errors import Unavailable
from registry.models import IcebergCommit
from registry.stores.sql.catalog_commits import SqlCatalogCommits
from tests.integration.components.commands.catalog.conftest import NEW, ROWS, ask
from tests.integration.components.commands.catalog.test_writers import client, rows_of


def property_commit(name: str, value: str, *requirements: dict[str, Any]) -> dict[str, Any]:
    update = {"action": "set-properties", "updates": {name: value}}
    return {"requirements": list(requirements), "updates": [update]}


def metadata_files(lake: LakeSettings) -> list[str]:
    return sorted(path.name for path in Path(lake.warehouse).rglob("*.json"))


def copied(location: str) -> str:
    """Returns the location of a copy of a metadata file."""
    copy = f"{location}.metadata.json"
    shutil.copyfile(location.removeprefix("file://"), copy.removeprefix("file://"))
    return copy


async def properties(http: ClientSession, space: str, table: str = "orders") -> dict[str, str]:
    found: dict[str, str] = (await ask(http, "GET", f"{space}/tables/{table}"))[1]["metadata"]["properties"]
    return found


async def test_a_failed_requirement_changes_nothing(
    served: str, http: ClientSession, store: MetadataStore, lake: LakeSettings
) -> None:
    before = metadata_files(lake)
    wrong = {"type": "assert-table-uuid", "uuid": str(uuid4())}
    status, body = await ask(http, "POST", f"{served}/tables/orders", json=property_commit("a", "1", wrong))
    assert (status, body["error"]["type"]) == (409, "CommitFailedException")
    assert metadata_files(lake) == before
    assert len(await rows_of(store, IcebergCommit)) == 2


async def test_several_tables_are_committed_together_or_not_at_all(
    served: str, http: ClientSession, store: MetadataStore
) -> None:
    base = served.removesuffix("/namespaces/sales")

    def change(table: str, value: str, *requirements: dict[str, Any]) -> dict[str, Any]:
        identifier = {"namespace": ["sales"], "name": table}
        return {"identifier": identifier, **property_commit("a", value, *requirements)}

    both = {"table-changes": [change("orders", "1"), change("returns", "1")]}
    assert await ask(http, "POST", f"{base}/transactions/commit", json=both) == (204, None)
    wrong = {"type": "assert-table-uuid", "uuid": str(uuid4())}
    half = {"table-changes": [change("orders", "2"), change("returns", "2", wrong)]}
    status, body = await ask(http, "POST", f"{base}/transactions/commit", json=half)
    assert (status, body["error"]["type"]) == (409, "CommitFailedException")
    missing = {"table-changes": [change("orders", "2"), change("nothing", "2")]}
    status, body = await ask(http, "POST", f"{base}/transactions/commit", json=missing)
    assert (status, body["error"]["type"]) == (404, "NoSuchTableException")
    twice = {"table-changes": [change("orders", "2"), change("orders", "3")]}
    assert (await ask(http, "POST", f"{base}/transactions/commit", json=twice))[0] == 400
    for table in ("orders", "returns"):
        assert (await properties(http, served, table))["a"] == "1"


async def test_a_repeated_key_takes_effect_once(served: str, http: ClientSession, store: MetadataStore) -> None:
    key = {"Idempotency-Key": str(uuid4())}
    path, body = f"{served}/tables/orders", property_commit("a", "1")
    answers = await asyncio.gather(*(ask(http, "POST", path, json=body, headers=key) for _ in range(4)))
    assert {status for status, _ in answers} == {200}
    assert len({found["metadata-location"] for _, found in answers}) == 1
    assert len(await rows_of(store, IcebergCommit)) == 3
    status, error = await ask(http, "POST", path, json=property_commit("a", "2"), headers=key)
    assert (status, error["error"]["type"]) == (422, "UnprocessableEntityException")


async def test_a_commit_whose_response_was_lost_succeeds_once(
    served: str, http: ClientSession, store: MetadataStore
) -> None:
    sent: list[bytes] = []

    def record(catalog: Any) -> None:
        send = catalog._session.post

        def post(url: str, **options: Any) -> Any:
            if url.endswith("/tables/orders"):
                sent.append(options["data"])
            return send(url, **options)

        catalog._session.post = post
        catalog.load_table("sales.orders").append(ROWS.select(["id"]))

    await client(served.removesuffix("/v1/namespaces/sales"), record)
    for _ in range(2):
        status, body = await ask(http, "POST", f"{served}/tables/orders", data=sent[0])
        assert (status, len(body["metadata"]["snapshots"])) == (200, 1)
    assert len(await rows_of(store, IcebergCommit)) == 3


async def test_an_unknown_outcome_is_looked_up(
    served: str, http: ClientSession, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SqlCatalogCommits.commit_catalog

    async def silent(self: SqlCatalogCommits, *args: Any, **options: Any) -> None:
        await commit(self, *args, **options)
        raise Unavailable("no response")

    monkeypatch.setattr(SqlCatalogCommits, "commit_catalog", silent)
    assert (await ask(http, "POST", f"{served}/tables/orders", json=property_commit("a", "1")))[0] == 200

    async def lost(self: SqlCatalogCommits, *args: Any, **options: Any) -> None:
        raise Unavailable("no response")

    monkeypatch.setattr(SqlCatalogCommits, "commit_catalog", lost)
    status, body = await ask(http, "POST", f"{served}/tables/orders", json=property_commit("a", "2"))
    assert (status, body["error"]["type"]) == (500, "CommitStateUnknownException")
    assert (await properties(http, served))["a"] == "1"


async def test_metadata_outlives_an_unexpected_error(
    served: str, http: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction may have been committed: its metadata file must not be deleted."""
    commit = SqlCatalogCommits.commit_catalog

    async def broken(self: SqlCatalogCommits, *args: Any, **options: Any) -> None:
        await commit(self, *args, **options)
        raise RuntimeError("a bug")

    monkeypatch.setattr(SqlCatalogCommits, "commit_catalog", broken)
    assert (await ask(http, "POST", f"{served}/tables/orders", json=property_commit("a", "1")))[0] == 500
    assert (await properties(http, served))["a"] == "1"


async def test_a_lost_race_is_tried_again(
    served: str, http: ClientSession, store: MetadataStore, monkeypatch: pytest.MonkeyPatch, lake: LakeSettings
) -> None:
    """Another process commits between preparation and transaction."""
    commit, raced = SqlCatalogCommits.commit_catalog, False

    async def race(self: SqlCatalogCommits, *args: Any, **options: Any) -> None:
        nonlocal raced
        if not raced:
            raced = True
            row = await store.get_catalog_table(iceberg_catalog.NAME, "sales", "orders")
            assert row is not None
            assert row.metadata_location is not None
            moved = msgspec.structs.replace(args[0][0], location=copied(row.metadata_location))
            await commit(self, [moved])
        await commit(self, *args, **options)

    monkeypatch.setattr(SqlCatalogCommits, "commit_catalog", race)
    assert (await ask(http, "POST", f"{served}/tables/orders", json=property_commit("a", "1")))[0] == 200
    assert (await properties(http, served))["a"] == "1"
    assert len(metadata_files(lake)) == 4, "the metadata file of the lost attempt is deleted"


def snapshot(path: str) -> dict[str, Any]:
    return {
        "requirements": [],
        "updates": [
            {
                "action": "add-snapshot",
                "snapshot": {
                    "snapshot-id": 1,
                    "sequence-number": 1,
                    "timestamp-ms": time.time_ns() // 1_000_000,
                    "manifest-list": path,
                    "summary": {"operation": "append"},
                    "schema-id": 0,
                },
            },
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1},
        ],
    }


DEEP = b'{"requirements": [], "updates": [{"action": "add-schema", "schema": %b1%b}]}' % (
    b'{"a":' * 50_000,
    b"}" * 50_000,
)
HOSTILE = [
    b"",
    b"{}",
    b'{"requirements": 1, "updates": []}',
    b'{"requirements": [], "updates": [{"action": "explode"}]}',
    b'{"requirements": [{"type": "assert-nothing"}], "updates": []}',
    b'{"requirements": [], "updates": [{"action": "set-location", "location": "file:///etc/astha"}]}',
    b'{"requirements": [], "updates": [{"action": "set-location", "location": "s3://bucket/x/../y"}]}',
    b'{"requirements": [], "updates": [{"action": "set-properties", "updates": {"write.metadata.path": "/etc"}}]}',
    msgspec.json.encode(snapshot("file:///etc/passwd")),
    msgspec.json.encode(snapshot("s3://elsewhere/list.avro")),
    msgspec.json.encode(snapshot("file:///nowhere/../etc/passwd")),
    b'{"requirements": [], "updates": [{"action": "add-schema", "schema": %b}]}' % DEEP,
]


async def test_a_hostile_commit_is_refused_and_writes_nothing(
    served: str, http: ClientSession, store: MetadataStore, lake: LakeSettings
) -> None:
    before = metadata_files(lake)
    for body in HOSTILE:
        status, error = await ask(http, "POST", f"{served}/tables/orders", data=io.BytesIO(body))
        assert (status, error["error"]["type"]) == (400, "BadRequestException"), (body[:80], error)
        if b"add-snapshot" in body:
            assert "is not below the warehouse" in error["error"]["message"]  # it was not even opened
    assert metadata_files(lake) == before
    assert len(await rows_of(store, IcebergCommit)) == 2


async def test_a_hostile_table_is_refused(served: str, http: ClientSession, store: MetadataStore) -> None:
    hostile: list[dict[str, Any]] = [
        *({"name": name} for name in ("a.b", "a/b", "", "x" * 300, "a\0b")),
        *({"location": place} for place in ("file:///etc/astha", "relative/path", "gs://bucket/x")),
        {"schema": {}},
        {"schema": [1]},
        {"properties": {"format-version": "9"}},
    ]
    for change in hostile:
        for stage in (False, True):
            body = {**NEW, "name": "new", **change, "stage-create": stage}
            status, error = await ask(http, "POST", f"{served}/tables", json=body)
            assert (status, error["error"]["type"]) == (400, "BadRequestException"), (change, error)
    assert len(await store.list_tables()) == 2


async def test_a_table_can_not_take_files_or_the_place_of_another(
    served: str, http: ClientSession, store: MetadataStore, lake: LakeSettings
) -> None:
    inside = {**NEW, "name": "new", "location": f"{lake.warehouse}/sales/orders/data"}
    status, error = await ask(http, "POST", f"{served}/tables", json=inside)
    assert (status, error["error"]["type"]) == (400, "BadRequestException")
    address = served.removesuffix("/v1/namespaces/sales")

    def steal(catalog: Any) -> None:
        catalog.load_table("sales.orders").append(ROWS.select(["id"]))
        (task,) = catalog.load_table("sales.orders").scan().plan_files()
        catalog.load_table("sales.returns").add_files([task.file.file_path], check_duplicate_files=False)

    with pytest.raises(Exception, match=r"is inside the location of sales\.orders"):
        await client(address, steal)
    returns = await store.get_table("sales", "returns")
    assert returns is not None
    assert returns.file_count == 0


async def test_a_table_that_moves_gets_its_files_there(
    served: str, http: ClientSession, store: MetadataStore, lake: LakeSettings
) -> None:
    place = f"file://{lake.warehouse}/elsewhere"
    body = {"requirements": [], "updates": [{"action": "set-location", "location": place.replace("file://", "file:")}]}
    status, found = await ask(http, "POST", f"{served}/tables/orders", json=body)
    assert (status, found["metadata"]["location"]) == (200, place)
    assert found["metadata-location"].startswith(f"{place}/metadata/")
    table = await store.get_table("sales", "orders")
    assert table is not None
    assert table.location == place
    body["updates"][0]["location"] = f"{place}/below"
    assert (await ask(http, "POST", f"{served}/tables/returns", json=body))[0] == 400


async def test_registering_is_refused_for_what_the_server_must_not_read(served: str, http: ClientSession) -> None:
    for location in ("file:///etc/passwd", "/etc/passwd", "relative", "s3://elsewhere/x.metadata.json"):
        body = {"name": "new", "metadata-location": location}
        status, error = await ask(http, "POST", f"{served}/register", json=body)
        assert (status, error["error"]["type"]) == (400, "BadRequestException"), location
    status, error = await ask(http, "POST", f"{served}/register", json={**body, "overwrite": True})
    assert (status, error["error"]["type"]) == (406, "UnsupportedOperationException")
