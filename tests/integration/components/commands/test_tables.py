"""`astha tables` on real registries, in this process and in one of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from astha.cli import main
from astha.cli.exit_codes import Exit
from astha.subscribers import LakeSettings
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.table_lookup import PURGE, begin_drop, find_table, finish_drop
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.errors import NotFound
from registry.inputs import FileDraft, TableDraft
from registry.json_text import to_json_text
from tests.lake import environment_of
from tests.servers.s3 import S3Server

T = TypeVar("T")
COLUMNS = ("--column", "id:long!", "--column", "ts:timestamptz", "--column", "place:struct<city: string!, zip: int>")


class Lake:
    """Runs the command on one registry."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, command: str, *arguments: str, code: Exit = Exit.OK) -> Result:
        result = CliRunner().invoke(main, ["tables", command, *arguments, "--registry", self.url])
        assert result.exit_code == code, result.output
        return result

    def refused(self, command: str, *arguments: str, code: Exit = Exit.USAGE) -> str:
        result = self.run(command, *arguments, code=code)
        assert result.stdout == ""
        assert result.stderr.startswith("astha: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    def json(self, command: str, *arguments: str) -> Any:
        return json.loads(self.run(command, *arguments, "--json").stdout)

    def do(self, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
        async def run() -> T:
            store = await open_store(self.url)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())


@pytest.fixture
def lake(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASTHA_LAKE__WAREHOUSE", "warehouse")
    return Lake(url)


def test_a_table_from_columns(lake: Lake, tmp_path: Path) -> None:
    made = lake.run("create", "sales.orders", *COLUMNS, "--partition-by", "day(ts)", "--partition-by", "bucket(4, id)",
                    "--sort-by", "ts desc", "--compression", "snappy", "--property", "owner=me")  # fmt: skip
    where = f"file://{tmp_path}/warehouse/sales/orders"
    assert made.stdout == (f"created sales.orders with 3 columns, partitioned by day(ts), bucket(4, id) at {where}\n")

    found = lake.json("describe", "sales.orders")
    assert found["columns"] == [
        {"id": 1, "name": "id", "type": "long", "required": True, "doc": None},
        {"id": 2, "name": "ts", "type": "timestamptz", "required": False, "doc": None},
        {"id": 3, "name": "place", "type": "struct<city: string!, zip: int>", "required": False, "doc": None},
    ]
    assert (found["partition_by"], found["sort_by"]) == (["day(ts)", "bucket(4, id)"], ["ts desc"])
    assert (found["location"], found["format"], found["compression"]) == (where, "parquet", "snappy")
    assert found["properties"] == {"owner": "me"}
    shown = lake.run("describe", "sales.orders").stdout
    for line in ("table           sales.orders", " 1  id      long!", "partitioned by  day(ts), bucket(4, id)",
                 "  owner = me", "rows            0 in 0 files, 0 bytes"):  # fmt: skip
        assert line in shown


def test_options_override_the_definition_file(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(
        "columns: {id: long!, name: string}\npartition_by: [name]\nlocation: s3://bucket/t\nproperties: {a: 1, b: 2}\n"
    )
    made = lake.json("create", "t", "--schema", "t.yaml", "--partition-by", "truncate(3, name)", "--property", "b=3",
                     "--no-check")  # fmt: skip
    assert made["created"]
    table = made["table"]
    assert (table["database"], table["location"], table["partition_by"]) == (
        "default", "s3://bucket/t", ["truncate(3, name)"]
    )  # fmt: skip
    assert table["properties"] == {"a": "1", "b": "3"}


def test_a_table_like_a_parquet_file(lake: Lake) -> None:
    pq.write_table(pa.table({"id": pa.array([1], pa.uint32()), "when": pa.array([1], pa.timestamp("ns"))}), "f.parquet")
    columns = lake.json("create", "t", "--like", "f.parquet")["table"]["columns"]
    assert [(column["name"], column["type"]) for column in columns] == [("id", "long"), ("when", "timestamp")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--column NAME:TYPE, --schema FILE or --like FILE"),
        (("--column", "id:lnog"), "did you mean long?"),
        (("--column", "id"), "after 'id' comes a colon"),
        (("--column", "id:long", "--column", "ID:long"), "differs only in case"),
        (("--column", "id:long", "--partition-by", "day(id)"), "day does not work on id"),
        (("--column", "id:long", "--sort-by", "name"), "there is no column 'name'"),
        (("--column", "id:long", "--format", "orc"), "format 'orc' has no engine"),
        (("--column", "id:long", "--compression", "rar"), "compression"),
        (("--column", "id:long", "--property", "x"), "write --property NAME=VALUE"),
        (("--column", "id:long", "--location", "ftp://x/y"), "ftp://x/y"),
        (("--column", "ts:timestamp_ns"), "needs Iceberg v3"),
    ],
)
def test_a_wrong_definition_is_refused_before_anything_is_written(
    lake: Lake, arguments: tuple[str, ...], said: str
) -> None:
    assert said in lake.refused("create", "t", *arguments)
    assert lake.json("list")["tables"] == []


@pytest.mark.parametrize("location", ["/proc/nope", "/dev/null/t", "in-the-way/t"])
def test_a_location_that_takes_no_files_is_refused(lake: Lake, location: str) -> None:
    Path("in-the-way").write_text("a file")
    said = lake.refused("create", "t", "--column", "id:long", "--location", location, code=Exit.UNAVAILABLE)
    assert "takes no files, so nothing was created" in said
    assert lake.json("list")["tables"] == []
    lake.run("create", "t", "--column", "id:long", "--location", location, "--no-check")


def test_a_missing_bucket_and_an_unreachable_endpoint_are_refused(
    lake: Lake, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment_of(LakeSettings(s3=s3_server.settings)).items():
        monkeypatch.setenv(name, value)
    where = ("--column", "id:long", "--location", "s3://nowhere-at-all/t")
    assert "bucket" in lake.refused("create", "t", *where, code=Exit.UNAVAILABLE)
    monkeypatch.setenv("ASTHA_LAKE__S3__ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("components.commands.tables.new_location._PROBE_TIMEOUT_S", 1.0)
    assert "reachable" in lake.refused("create", "t", *where, code=Exit.UNAVAILABLE)
    assert lake.json("list")["tables"] == []


def test_a_location_is_not_shared_by_two_tables(lake: Lake, tmp_path: Path, backend: str) -> None:
    def refused(name: str, location: str) -> str:
        return lake.refused("create", name, "--column", "id:long", "--location", location)

    lake.run("create", "first", "--column", "id:long", "--location", "a/b")
    (tmp_path / "alias").symlink_to(tmp_path / "a")
    for location in ("a/b", "a/b/c", "a", "a/./b/", "alias/b"):
        assert "shares files with default.first" in refused("second", location)
    assert "root of all files" in refused("second", "/")
    assert "whole bucket" in refused("second", "s3://bucket")
    assert "holds the warehouse" in refused("second", "warehouse")
    if backend == "sqlite":
        file = Path(lake.url.removeprefix("sqlite://"))
        assert "registry's own file" in refused("second", str(file))
        assert "registry's own file" in refused("second", str(file.parent))
    lake.run("create", "second", "--column", "id:long", "--location", "a/bc")
    assert len(lake.json("list")["tables"]) == 2


def test_a_reused_table_name_gets_another_location(lake: Lake) -> None:
    first = lake.json("create", "t", "--column", "id:long")["table"]["location"]
    lake.run("alter", "t", "--rename-table", "u")
    second = lake.json("create", "t", "--column", "id:long")["table"]["location"]
    assert second.startswith(f"{first}-")


def test_names(lake: Lake) -> None:
    nested = lake.json("create", "a.b.c", "--column", "id:long")["table"]
    assert (nested["database"], nested["name"]) == ("a.b", "c")
    assert "DATABASE.TABLE" in lake.refused("create", "a..c", "--column", "id:long")
    assert "DATABASE.TABLE" in lake.refused("create", ".b", "--column", "id:long")
    assert "slash" in lake.refused("create", "a/b", "--column", "id:long")


def test_an_existing_name_is_refused(lake: Lake) -> None:
    lake.run("create", "t", "--column", "id:long")
    assert "t" in lake.refused("create", "t", "--column", "other:int", code=Exit.PROBLEM)
    again = lake.json("create", "t", "--column", "other:int", "--if-not-exists")
    assert not again["created"]
    assert [column["name"] for column in again["table"]["columns"]] == ["id"]
    assert "exists already, with schema version 1" in lake.run(
        "create", "t", "--column", "other:int", "--if-not-exists"
    ).stdout  # fmt: skip


def test_listing(lake: Lake) -> None:
    assert "no tables" in lake.run("list").stdout
    for name in ("b.two", "a.one"):
        lake.run("create", name, "--column", "id:long")
    assert [line.split()[0] for line in lake.run("list").stdout.splitlines()] == ["table", "a.one", "b.two"]
    assert [table["name"] for table in lake.json("list", "--database", "b")["tables"]] == ["two"]
    assert "no tables in c" in lake.run("list", "--database", "c").stdout


def test_statistics_of_partitions(lake: Lake) -> None:
    lake.run("create", "t", "--column", "id:long", "--partition-by", "id")
    file = FileDraft(file_path="s3://b/f", file_size=2048, row_count=3, schema_version=1, partition_path="id=7")

    async def insert(store: MetadataStore) -> None:
        await store.add_files((await find_table(store, "t")).id, [file])

    lake.do(insert)
    shown = lake.run("describe", "t", "--partitions").stdout
    assert "rows            3 in 1 file, 2.0 KiB" in shown
    assert "id=7          3      1  2.0 KiB" in shown
    assert lake.json("describe", "t")["partitions"] == []


def test_alter_creates_one_schema_version(lake: Lake) -> None:
    lake.run("create", "t", *COLUMNS, "--partition-by", "day(ts)", "--property", "a=1")
    done = lake.run("alter", "t", "--add", "note:string", "--add", "place.street:string", "--rename", "ts=at",
                    "--widen", "place.zip:long", "--optional", "place.city", "--sort-by", "at desc", "--move", "note",
                    "--property", "b=2", "--unset", "a")  # fmt: skip
    assert done.stdout == "default.t: schema version 2\n"
    found = lake.json("describe", "t")
    assert [(column["id"], column["name"], column["type"]) for column in found["columns"]] == [
        (6, "note", "string"),
        (1, "id", "long"),
        (2, "at", "timestamptz"),
        (3, "place", "struct<city: string, zip: long, street: string>"),
    ]
    assert (found["partition_by"], found["sort_by"]) == (["day(at) as ts_day"], ["at desc"])
    assert found["properties"] == {"b": "2"}
    assert [version["columns"] for version in found["versions"]] == [3, 4]
    assert [column["name"] for column in lake.json("describe", "t", "--version", "1")["columns"]] == [
        "id",
        "ts",
        "place",
    ]
    assert "the newest is 2" in lake.refused("describe", "t", "--version", "9", code=Exit.PROBLEM)
    assert "version" in lake.run("describe", "t").stdout


def test_ids_of_dropped_columns_are_not_reused(lake: Lake) -> None:
    lake.run("create", "t", "--column", "id:long", "--column", "a:list<int>")
    lake.run("alter", "t", "--drop", "a")
    lake.run("alter", "t", "--add", "a:int")
    assert [column["id"] for column in lake.json("describe", "t")["columns"]] == [1, 4]


def test_properties_and_names_change_without_a_new_version(lake: Lake) -> None:
    lake.run("create", "sales.t", "--column", "id:long", "--property", "a=1")
    done = lake.json("alter", "sales.t", "--property", "b=x=y", "--unset", "a", "--rename-table", "sold.u")
    assert done["changed"] == ["properties", "renamed from sales.t"]
    assert (done["table"]["database"], done["table"]["name"]) == ("sold", "u")
    found = lake.json("describe", "sold.u")
    assert (found["properties"], found["schema_version"]) == ({"b": "x=y"}, 1)
    assert found["location"].endswith("/sales/t")
    nothing = lake.run("alter", "sold.u", "--property", "b=x=y", "--optional", "id", "--rename-table", "sold.u")
    assert nothing.stdout == "sold.u: nothing to change, it is already so\n"
    lake.run("create", "sold.other", "--column", "id:long")
    assert "another table" in lake.refused("alter", "sold.u", "--rename-table", "sold.other", code=Exit.PROBLEM)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), Exit.USAGE, "nothing to change"),
        (("--add", "x"), Exit.USAGE, "after 'x' comes a colon"),
        (("--rename", "x"), Exit.USAGE, "write --rename COLUMN=NAME"),
        (("--widen", "id:long!"), Exit.USAGE, "leave out the !"),
        (("--add", "x:int!"), Exit.PROBLEM, "default.t: column x is new and required"),
        (("--widen", "id:int"), Exit.PROBLEM, "long can't become int"),
        (("--drop", "ts"), Exit.PROBLEM, "the table is partitioned by it"),
        (("--drop", "nowhere"), Exit.PROBLEM, "there is no column 'nowhere' among id, ts, place"),
    ],
)
def test_impossible_alterations_are_refused(lake: Lake, arguments: tuple[str, ...], code: Exit, said: str) -> None:
    lake.run("create", "t", *COLUMNS, "--partition-by", "day(ts)")
    assert said in lake.refused("alter", "t", *arguments, code=code)
    assert lake.json("describe", "t")["schema_version"] == 1


def test_two_concurrent_alterations_both_succeed(lake: Lake) -> None:
    lake.run("create", "t", "--column", "id:long")
    columns = ["c1", "c2"]
    commands = [
        subprocess.Popen(
            [Path(sys.executable).with_name("astha"), "tables", "alter", "t", "--add", f"{name}:int", "--registry",
             lake.url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for name in columns
    ]  # fmt: skip
    for command in commands:
        output, _ = command.communicate(timeout=300)
        assert command.returncode == 0, output
    found = lake.json("describe", "t")
    assert found["schema_version"] == 3
    assert {column["name"] for column in found["columns"]} == {"id", *columns}
    assert {column["id"] for column in found["columns"]} == {1, 2, 3}


@pytest.mark.parametrize("command", ["describe", "alter", "drop"])
def test_a_table_that_is_not_there(lake: Lake, command: str) -> None:
    arguments = {"alter": ["--drop", "x"], "drop": ["--yes"]}.get(command, [])
    assert "there is no table default.gone" in lake.refused(command, "gone", *arguments, code=Exit.PROBLEM)


def test_dropping(lake: Lake) -> None:
    lake.run("create", "t", "--column", "id:long")
    assert "repeat with --yes" in lake.refused("drop", "t")
    assert "its files stay at file://" in lake.run("drop", "t", "--yes").stdout
    assert lake.json("list")["tables"] == []


def test_purge_queues_files_for_deletion(lake: Lake) -> None:
    lake.run("create", "t", "--column", "id:long")
    file = FileDraft(file_path="s3://b/f", file_size=1, row_count=1, schema_version=1)

    async def insert(store: MetadataStore) -> None:
        await store.add_files((await find_table(store, "t")).id, [file])

    lake.do(insert)
    assert lake.json("drop", "t", "--purge", "--yes") == {"dropped": "default.t", "purged": True, "files": 1}
    waiting = lake.do(lambda store: store.list_files_awaiting_deletion())
    assert [entry.file_path for entry in waiting] == ["s3://b/f"]


def test_an_interrupted_drop_is_completed_as_requested(lake: Lake) -> None:
    lake.run("create", "t", "--column", "id:long")
    file = FileDraft(file_path="s3://b/f", file_size=1, row_count=1, schema_version=1)

    async def begin(store: MetadataStore) -> None:
        table = await find_table(store, "t")
        await store.add_files(table.id, [file])
        assert await begin_drop(store, table, purge=True)

    lake.do(begin)
    found = lake.json("describe", "t")
    assert (found["status"], found["properties"]) == ("dropping", {PURGE: "true"})
    assert "default.t is dropping" in lake.refused("alter", "t", "--add", "x:int", code=Exit.PROBLEM)

    async def finish(store: MetadataStore) -> tuple[bool, bool]:
        table = await find_table(store, "t")
        return await finish_drop(store, table), await finish_drop(store, table)

    assert lake.do(finish) == (True, False)
    assert len(lake.do(lambda store: store.list_files_awaiting_deletion())) == 1


def test_a_repeated_drop_keeps_the_purge_of_the_first(lake: Lake) -> None:
    lake.run("create", "t", "--column", "id:long")

    async def begin(store: MetadataStore) -> None:
        await begin_drop(store, await find_table(store, "t"), purge=True)

    lake.do(begin)
    assert lake.json("drop", "t", "--yes")["purged"]
    with pytest.raises(NotFound):
        lake.do(lambda store: find_table(store, "t"))


def test_an_unreadable_schema_is_described_as_far_as_possible(lake: Lake) -> None:
    draft = TableDraft(schema=to_json_text({"type": "struct", "fields": [{"id": 1, "name": "a", "type": "variant"}]}))
    lake.do(lambda store: store.create_table("default", "t", "file:///t", draft))
    result = lake.run("describe", "t", code=Exit.PROBLEM)
    assert "location        file:///t" in result.stdout
    assert "table default.t, schema version 1" in result.stderr
    assert "variant" in lake.refused("alter", "t", "--add", "x:int", code=Exit.PROBLEM)
    lake.run("drop", "t", "--yes")


def test_components_read_what_create_writes(lake: Lake) -> None:
    lake.run("create", "t", *COLUMNS, "--partition-by", "day(ts)", "--sort-by", "id")

    async def read(store: MetadataStore) -> TableSchema:
        metadata = await store.get_table_metadata((await find_table(store, "t")).id)
        assert metadata is not None
        return TableSchema.of(metadata)

    schema = lake.do(read)
    assert schema.arrow().names == ["id", "ts", "place"]
    assert [field.name for field in schema.partition.fields] == ["ts_day"]


def test_help_has_examples(lake: Lake) -> None:
    for command in ("create", "list", "describe", "alter", "drop"):
        text = CliRunner().invoke(main, ["tables", command, "--help"]).stdout
        assert f"astha tables {command}" in text
        assert "Example" in text
