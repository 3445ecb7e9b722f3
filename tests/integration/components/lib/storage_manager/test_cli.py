"""`astha insert` on both databases."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyiceberg.schema import Schema

from components.commands.insert import insert_command
from registry.contract import MetadataStore
from tests.contracts.contents import assert_counted
from tests.doubles.clock import ManualClock
from tests.lake import EVERYTHING, FULL_ROW, create_table, files_below, read_rows, table_schema

FLAT = Schema(*(field for field in EVERYTHING.fields if field.field_type.is_primitive))


async def insert(url: str, *arguments: str | Path, stdin: bytes | None = None) -> Result:
    command = ["--registry", url, *map(str, arguments)]
    return await asyncio.to_thread(CliRunner().invoke, insert_command, command, input=stdin)


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


ROWS: list[dict[str, Any]] = [{"id": 1, "name": "a", "day": "2024-05-01"}, {"id": 2, "name": None, "day": None}]
READ = [{"id": 1, "name": "a", "day": date(2024, 5, 1)}, {"id": 2, "name": None, "day": None}]


async def test_files_of_all_formats(
    url: str, store: MetadataStore, clock: ManualClock, warehouse: Path, tmp_path: Path
) -> None:
    table = await create_table(store, warehouse)
    pq.write_table(pa.Table.from_pylist(READ), tmp_path / "a.parquet")
    csv = written(tmp_path / "b.csv", "day,id,name\n2024-05-01,1,a\n,2,\n")
    jsonl = written(tmp_path / "c.jsonl", lines(ROWS[0]) + "\n" + lines(ROWS[1]))
    result = await insert(url, "shop.orders", tmp_path / "a.parquet", csv, jsonl, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.output)
    assert (summary["rows"], summary["files"], len(summary["inserts"])) == (6, 3, 3)
    assert sorted(await read_rows(store, table), key=lambda row: int(row["id"])) == [READ[0]] * 3 + [READ[1]] * 3
    assert {path for one in summary["inserts"] for path in one["files"]} == files_below(warehouse)
    await assert_counted(store, table.id)
    clock.advance(10**13)  # the command recorded its intents by the real clock
    assert await store.list_stale_intents(0) == []


BAD = {
    "jsonl": lines(ROWS[0], {"id": "x", "name": "b", "day": None}, ROWS[1])
    + "no JSON\n"
    + lines({"id": None, "name": "c", "day": None}),
    "csv": "id,name,day\n1,a,2024-05-01\nx,b,\n2,,\n3,too,2024-05-01,many\n,c,\n",
}


@pytest.mark.parametrize("kind", sorted(BAD))
async def test_rows_that_dont_fit_are_skipped_with_their_reasons(
    url: str, store: MetadataStore, warehouse: Path, tmp_path: Path, kind: str
) -> None:
    table = await create_table(store, warehouse)
    file, rejects = written(tmp_path / f"a.{kind}", BAD[kind]), tmp_path / "rejects.jsonl"
    refused = await insert(url, "shop.orders", file)
    assert refused.exit_code == 2
    assert "3 rows don't fit: row 2" in refused.stderr or "3 rows don't fit: row 4" in refused.stderr
    assert await read_rows(store, table) == []

    result = await insert(url, "shop.orders", file, "--on-error", "skip", "--rejects", rejects, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["rows"], summary["rejected"]) == (2, 3)
    assert sorted(await read_rows(store, table), key=lambda row: int(row["id"])) == READ
    found = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert sorted(each["row"] for each in found) == [2, 4, 5]
    assert all(each["file"] == str(file) and each["reason"] and each["values"] for each in found)
    assert next(each["column"] for each in found if each["row"] == 5) == "id"
    assert (await insert(url, "shop.orders", file, "--on-error", "skip")).exit_code == 2


async def skipped(url: str, file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the summary and the rejects of an insert that skips."""
    rejects = file.with_suffix(".rejects")
    result = await insert(url, "shop.orders", file, "--on-error", "skip", "--rejects", rejects, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), [json.loads(line) for line in rejects.read_text().splitlines()]


async def test_rows_of_parquet_that_dont_fit_are_skipped(
    url: str, store: MetadataStore, warehouse: Path, tmp_path: Path
) -> None:
    """Rows of several row groups and of every type: what does not fit is written as it was read."""
    schema = table_schema(EVERYTHING)
    table = await create_table(store, warehouse, schema=schema)
    given = pa.Table.from_pylist([{**FULL_ROW, "id": number} for number in range(1, 8)], schema.arrow())
    optional = [field.with_nullable(True) for field in given.schema]
    loose = given.cast(pa.schema(optional)).set_column(
        given.schema.get_field_index("small"),
        pa.field("small", pa.int64()),
        pa.array([-3, 2**40, -3, -3, -(2**40), -3, None]),
    )
    loose = loose.set_column(0, pa.field("id", pa.int64()), pa.array([1, 2, None, 4, 5, 6, 7]))
    file = tmp_path / "a.parquet"
    pq.write_table(loose, file, row_group_size=2)

    refused = await insert(url, "shop.orders", file)
    assert refused.exit_code == 2
    assert "3 rows don't fit: row 2, column 'small': 1099511627776 (int64) does not fit into int32" in refused.stderr
    assert files_below(warehouse) == set()

    summary, found = await skipped(url, file)
    assert (summary["rows"], summary["rejected"]) == (4, 3)
    assert [(each["row"], each["column"]) for each in found] == [(2, "small"), (3, "id"), (5, "small")]
    assert found[0]["values"]["small"] == 2**40
    assert set(found[0]["values"]) == set(FULL_ROW)
    assert [row["id"] for row in await read_rows(store, table)] == [1, 4, 6, 7]


async def test_parquet_of_which_no_row_or_no_column_fits(
    url: str, store: MetadataStore, warehouse: Path, tmp_path: Path
) -> None:
    table = await create_table(store, warehouse)
    optional = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])
    pq.write_table(
        pa.table({"id": [None, None], "name": ["a", "b"], "day": [None, None]}, optional), tmp_path / "a.parquet"
    )
    summary, found = await skipped(url, tmp_path / "a.parquet")
    assert (summary["rows"], summary["files"], summary["rejected"]) == (0, 0, 2)
    assert [each["row"] for each in found] == [1, 2]
    assert await read_rows(store, table) == []

    pq.write_table(pa.table({"id": ["1", "2"], "name": ["a", "b"], "day": [None, None]}), tmp_path / "b.parquet")
    rejects = tmp_path / "b.rejects"
    wrong = await insert(url, "shop.orders", tmp_path / "b.parquet", "--on-error", "skip", "--rejects", rejects)
    assert wrong.exit_code == 2
    assert "column 'id': is string where the table has int64" in wrong.stderr
    assert rejects.read_text() == ""
    one = pa.table({"id": ["1"], "name": ["a"], "day": [None]})
    pq.write_table(one, tmp_path / "c.parquet")
    wrong = await insert(url, "shop.orders", tmp_path / "c.parquet", "--on-error", "skip", "--rejects", rejects)
    assert wrong.exit_code == 2


async def test_a_half_done_list_of_files_is_repeated_with_its_id(
    url: str, store: MetadataStore, warehouse: Path, tmp_path: Path
) -> None:
    table = await create_table(store, warehouse)
    first, second = written(tmp_path / "a.jsonl", lines(ROWS[0])), written(tmp_path / "b.jsonl", "no JSON\n")
    arguments = ("shop.orders", first, second, "--id", "monday")
    assert (await insert(url, *arguments)).exit_code == 2
    written(second, lines(ROWS[1]))
    result = await insert(url, *arguments)
    assert result.exit_code == 0, result.output
    assert f"{first}: inserted before, 1 row; nothing was changed" in result.output
    again = await insert(url, *arguments, "--json")
    assert [one["repeated"] for one in json.loads(again.output)["inserts"]] == [True, True]
    assert sorted(await read_rows(store, table), key=lambda row: int(row["id"])) == READ
    assert files_below(warehouse) == {file.file_path async for file in store.stream_files(table.id)}
    other = await insert(url, "shop.orders", first, "--id", "tuesday", "--json")
    assert json.loads(other.output)["rows"] == 1
    assert (await insert(url, "shop.orders", first, first, "--id", "wednesday")).exit_code == 2


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
async def test_standard_input(url: str, store: MetadataStore, warehouse: Path, tmp_path: Path, kind: str) -> None:
    table = await create_table(store, warehouse)
    pq.write_table(pa.Table.from_pylist(READ), tmp_path / "a.parquet")
    stdin = {
        "csv": b"id,name,day\n1,a,2024-05-01\n2,,\n",
        "json": lines(*ROWS).encode(),
        "parquet": (tmp_path / "a.parquet").read_bytes(),
    }[kind]
    result = await insert(url, "shop.orders", "-", "--format", kind, "--sync", stdin=stdin)
    assert (result.exit_code, result.output.split(" (")[0]) == (0, "shop.orders: 2 rows in 1 file"), result.output
    assert await read_rows(store, table) == READ


async def test_text_is_read_by_the_tables_types(
    url: str, store: MetadataStore, warehouse: Path, tmp_path: Path
) -> None:
    schema = table_schema(EVERYTHING)
    table = await create_table(store, warehouse, schema=schema)
    text = {
        "id": 1, "flag": True, "small": -3, "single": 1.5, "double": 2.5, "price": "1.23", "amount": -4.5,
        "huge": "HUGE", "day": "2024-05-01", "clock": "01:02:03.000004",
        "local": "2024-05-01T12:00:00", "at": "2024-05-01T14:00:00+02:00", "name": "é", "raw": "/w==",
        "code": "YWJjZA==", "key": str(UUID(int=5)),
        "scores": [1.0, None, 2], "place": {"x": 1.5, "label": "q"}, "tags": {"k": 1},
    }  # fmt: skip
    line = json.dumps(text).replace('"HUGE"', "123456789012345678901234.56789")
    result = await insert(url, "shop.orders", written(tmp_path / "a.json", line))
    assert result.exit_code == 0, result.output
    (row,) = await read_rows(store, table)
    assert row == {
        **FULL_ROW, "double": 2.5, "huge": Decimal("123456789012345678901234.56789"), "name": "é", "raw": b"\xff",
        "scores": [1.0, None, 2.0], "place": {"x": 1.5, "label": "q"}, "tags": [("k", 1)],
    }  # fmt: skip


async def test_csv_of_every_flat_type(url: str, store: MetadataStore, warehouse: Path, tmp_path: Path) -> None:
    table = await create_table(store, warehouse, schema=table_schema(FLAT))
    header = ",".join(field.name for field in FLAT.fields)
    values = (
        f"1,true,-3,1.5,2.5,1.23,-4.5,123.5,2024-05-01,01:02:03.000004,2024-05-01 12:00:00,2024-05-01T14:00:00+02:00,"
        f'"a ""b""\nc",raw,abcd,{UUID(int=5)}'
    )
    nulls = "2" + "," * 15
    result = await insert(url, "shop.orders", written(tmp_path / "a.csv", f"{header}\n{values}\n{nulls}\n"))
    assert result.exit_code == 0, result.output
    full, empty = await read_rows(store, table)
    assert full == {
        "id": 1, "flag": True, "small": -3, "single": 1.5, "double": 2.5, "price": Decimal("1.23"),
        "amount": Decimal("-4.5"), "huge": Decimal("123.5"), "day": date(2024, 5, 1), "clock": time(1, 2, 3, 4),
        "local": datetime(2024, 5, 1, 12), "at": datetime(2024, 5, 1, 12, tzinfo=UTC), "name": 'a "b"\nc',
        "raw": b"raw", "code": b"abcd", "key": UUID(int=5),
    }  # fmt: skip
    assert empty == {**dict.fromkeys(full), "id": 2}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "id,name,day\n1,a,2024-05-01\nx,b,2024-05-01\n", "row 2, column 'id': CSV conversion error to int64"),
        ("a.csv", "id,name,day\n1,a,2024-05-01\n2,b\n", "row 2: Expected 3 columns, got 2"),
        ("a.csv", "id,name,day\n1,a,\n,b,\n", "row 2, column 'id': is null, and the table requires a value"),
        ("a.csv", "id,nme,day\n1,a,\n", "column 'nme': is not in the table, which has id, name, day"),
        ("a.csv", "", "not a CSV file"),
        (
            "a.jsonl",
            '{"id": 1, "name": "a", "day": null}\n{"id": 1.5, "name": "a", "day": null}\n',
            "row 2, column 'id'",
        ),
        ("a.jsonl", '{"id": 1, "name": "a", "day": "May"}\n', "row 1, column 'day': 'May' (str) is not a date"),
        ("a.jsonl", '{"id": 1, "name": "a"}\n', "row 1, column 'day': is missing"),
        ("a.jsonl", '{"id": 1, "name": "a", "day": null}\n[1]\n', "row 2: not a JSON object"),
        (
            "a.jsonl",
            f'{{"id": 1, "name": {"[" * 1_200 + "]" * 1_200}}}\n',
            "row 1: lists and objects are nested too deeply",
        ),
        ("a.parquet", "PAR?", "not a Parquet file"),
        ("a.txt", "", "give it with --format"),
    ],
)
async def test_refused_rows_are_named_and_leave_nothing(
    url: str, store: MetadataStore, clock: ManualClock, warehouse: Path, tmp_path: Path, name: str, text: str, said: str
) -> None:
    table = await create_table(store, warehouse)
    result = await insert(url, "shop.orders", written(tmp_path / name, text))
    assert result.exit_code == 2
    assert said in result.output
    assert name in result.output
    assert files_below(warehouse) == set()
    assert await store.list_files(table.id) == []
    clock.advance(10**13)
    assert await store.list_stale_intents(0) == []


async def test_each_file_is_one_insert(url: str, store: MetadataStore, warehouse: Path, tmp_path: Path) -> None:
    table = await create_table(store, warehouse)
    good = written(tmp_path / "good.csv", "id,name,day\n1,a,\n")
    bad = written(tmp_path / "bad.csv", "id,name,day\nx,a,\n")
    result = await insert(url, "shop.orders", good, bad, good)
    assert result.exit_code == 2
    assert "bad.csv: row 1, column 'id'" in result.output
    assert "good.csv inserted before" in result.output
    assert len(await read_rows(store, table)) == 1


async def test_missing_columns_may_be_filled(url: str, store: MetadataStore, warehouse: Path, tmp_path: Path) -> None:
    table = await create_table(store, warehouse)
    files = [written(tmp_path / "a.csv", "id\n1\n"), written(tmp_path / "b.json", '{"id": 2}\n')]
    result = await insert(url, "shop.orders", *files, "--fill-missing")
    assert result.exit_code == 0, result.output
    assert sorted(row["id"] for row in await read_rows(store, table)) == [1, 2]


async def test_a_table_that_is_not_there(url: str, tmp_path: Path) -> None:
    result = await insert(url, "shop.orders", written(tmp_path / "a.csv", "id\n1\n"))
    assert (result.exit_code, result.output) == (
        1,
        "astha: there is no table 'shop.orders': `astha tables list` shows those that exist\n",
    )


async def test_rows_are_counted_across_blocks(url: str, store: MetadataStore, warehouse: Path, tmp_path: Path) -> None:
    await create_table(store, warehouse)
    text = "id,name,day\n" + "".join(f"{number},{'x' * 100},\n" for number in range(150_000)) + "x,,\n"
    result = await insert(url, "shop.orders", written(tmp_path / "a.csv", text))
    assert "row 150,001, column 'id'" in result.output
