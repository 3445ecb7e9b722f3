from __future__ import annotations

import contextlib
import dataclasses
import io
import pickle
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, LongType, NestedField, StringType, StructType

from components.compactor.merge import BadInput, MergeFailed, MergeInput, MergeTask, engine, merge
from components.compactor.merge.task import reading
from components.lib.lake.files import engine_of
from components.lib.lake.files.sorting import arrange
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.objects import ObjectMissing, Objects
from registry.json_text import JsonText, parse_json_as
from registry.models import ColumnStats
from tests.lake import EMPTY_ROW, EVERYTHING, FULL_ROW, order_of, rows_of, table_schema
from tests.unit.components.compactor.merge.groups import path_of, read, task, write

PLAIN = table_schema(EVERYTHING)
SORTED = table_schema(EVERYTHING, order=order_of((1, IdentityTransform(), "desc last")))
NUMBERS = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType()))


def group(directory: Path, schema: TableSchema, files: int = 3, rows: int = 4) -> list[MergeInput]:
    found = []
    for file in range(files):
        contents = [{**(FULL_ROW if row % 2 else EMPTY_ROW), "id": row * files + file} for row in range(rows)]
        found.append(write(directory / f"in-{file}.parquet", rows_of(schema, *contents), schema))
    return found


def numbers(
    directory: Path, schema: TableSchema, files: int = 4, rows: int = 1_000, most: int = 2**40
) -> list[MergeInput]:
    chance = np.random.default_rng(1)
    return [
        write(
            directory / f"in-{file}.parquet",
            pa.table([pa.array(chance.integers(0, most, rows)) for _ in range(2)], schema=schema.arrow()),
            schema,
        )
        for file in range(files)
    ]


def test_files_become_one_with_the_same_rows(tmp_path: Path) -> None:
    schema = PLAIN
    for asked, used in (("auto", "copy"), ("copy", "copy"), ("binpack", "binpack"), ("auto", "sort")):
        schema = SORTED if used == "sort" else PLAIN
        inputs = group(tmp_path, schema)
        before = [path_of(file.path).read_bytes() for file in inputs]
        result = merge(task(tmp_path, inputs, schema, strategy=asked, copy_above_bytes=0))
        assert (result.strategy, result.proven, result.rows_in, len(result.files)) == (used, True, 12, 1)
        assert set(result.checksums_in) == {0, *range(1, 25)} - {17, 19, 22}  # leaf columns, and whole rows
        rows = read(result)
        assert rows.schema.equals(schema.arrow())
        ids = rows.column("id").to_pylist()
        assert ids == sorted(range(12), reverse=True) if used == "sort" else sorted(ids) == list(range(12))
        assert Counter(map(repr, rows.drop_columns("id").to_pylist())).most_common(1)[0][1] == 6
        assert (result.bytes_read, result.bytes_written) == (sum(map(size_of, inputs)), result.files[0].file_size)
        assert [path_of(file.path).read_bytes() for file in inputs] == before


def size_of(file: MergeInput) -> int:
    return file.size


@pytest.mark.parametrize("strategy", ["auto", "binpack", "sort"])
def test_a_large_group_makes_files_of_about_the_same_size(tmp_path: Path, strategy: str) -> None:
    order = order_of((1, IdentityTransform(), "asc first")) if strategy == "sort" else None
    schema = table_schema(NUMBERS, order=order)
    config = JsonText('{"row_group_rows":100}')
    inputs = numbers(tmp_path, schema)
    result = merge(
        task(tmp_path, inputs, schema, many=8, strategy=strategy, target_bytes=17_000, copy_above_bytes=0,
             engine_config=config if strategy != "auto" else JsonText("{}"))
    )  # fmt: skip
    assert 3 <= len(result.files) <= 5
    sizes = [file.file_size for file in result.files]
    assert max(sizes) < 1.5 * min(sizes)
    rows = read(result)
    assert rows.num_rows == 4_000
    if strategy == "sort":
        assert rows.column("a").to_pylist() == sorted(rows.column("a").to_pylist())


def test_no_more_files_than_names(tmp_path: Path) -> None:
    schema = table_schema(NUMBERS)
    for strategy in ("binpack", "copy"):
        result = merge(task(tmp_path, numbers(tmp_path, schema), schema, many=2, strategy=strategy, target_bytes=1_000))
        assert len(result.files) == 2
        assert read(result).num_rows == 4_000


def test_a_group_that_is_not_held_is_read_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_HELD", 1 << 40)
    schema = table_schema(NUMBERS)
    inputs = numbers(tmp_path, schema)
    for strategy in ("binpack", "copy"):
        result = merge(task(tmp_path, inputs, schema, strategy=strategy, copy_above_bytes=0))
        assert result.strategy == strategy
        assert read(result).num_rows == 4_000
        assert result.bytes_read > sum(map(size_of, inputs))  # the footers twice


@pytest.mark.parametrize("strategy", ["sort", "binpack"])
def test_a_group_too_large_for_the_memory_says_so_before_it_is_read(tmp_path: Path, strategy: str) -> None:
    schema = table_schema(
        NUMBERS, order=order_of((1, IdentityTransform(), "asc first")) if strategy == "sort" else None
    )
    inputs = numbers(tmp_path, schema)
    with pytest.raises(MemoryError, match=r"shop.orders.*4 files need about .* MiB.*merge fewer at a time"):
        merge(task(tmp_path, inputs, schema, strategy=strategy, memory_bytes=50_000))
    assert not list(tmp_path.glob("out*"))


def test_a_large_group_is_refused_by_its_footers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a group is read once in vain before it is merged in halves."""
    schema = table_schema(NUMBERS, order=order_of((1, IdentityTransform(), "asc first")))
    inputs = numbers(tmp_path, schema)
    read_whole: list[str] = []

    class Watched(Objects):
        async def get_many(self, uris: Sequence[str]) -> list[bytes]:
            read_whole.extend(uris)
            return await super().get_many(uris)

    monkeypatch.setattr(engine, "Objects", Watched)
    size = sum(map(size_of, inputs))
    with pytest.raises(MemoryError):
        merge(task(tmp_path, inputs, schema, memory_bytes=size + 1))
    assert read_whole == []
    result = merge(task(tmp_path, inputs, schema, memory_bytes=64 << 20))
    assert (result.strategy, read(result).num_rows) == ("sort", 4_000)
    assert sorted(read_whole) == sorted(file.path for file in inputs)


def test_a_large_group_that_fits_is_sorted(tmp_path: Path) -> None:
    """Its footers are read first, and then its files."""
    schema = table_schema(NUMBERS, order=order_of((1, IdentityTransform(), "asc first")))
    inputs = numbers(tmp_path, schema, most=2**62)
    size = sum(map(size_of, inputs))
    held = merge(task(tmp_path, inputs, schema))
    rows = read(held)
    result = merge(task(tmp_path, inputs, schema, memory_bytes=4 * size - 1))
    assert held.bytes_read == size < result.bytes_read
    assert read(result).equals(rows)
    assert rows.column("a").to_pylist() == sorted(rows.column("a").to_pylist())


def test_z_order_keeps_neighbours_of_every_column_together(tmp_path: Path) -> None:
    order = order_of((1, IdentityTransform(), "asc first"), (2, IdentityTransform(), "desc last"))
    schema = table_schema(NUMBERS, order=order)
    config = JsonText('{"row_group_rows":100}')
    widths = {}
    for strategy in ("sort", "zorder"):
        result = merge(task(tmp_path, numbers(tmp_path, schema), schema, strategy=strategy, engine_config=config))
        assert (result.strategy, read(result).num_rows) == (strategy, 4_000)
        footer = pq.read_metadata(path_of(result.files[0].file_path))
        assert bool(footer.row_group(0).sorting_columns) == (strategy == "sort")
        groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
        widths[strategy] = [
            fmean(group.column(place).statistics.max - group.column(place).statistics.min for group in groups) / 2**40
            for place in (0, 1)
        ]
    assert widths["sort"][1] > 0.9  # by the second column nothing can be skipped
    assert max(widths["zorder"]) < 0.5


def test_empty_files_give_no_output(tmp_path: Path) -> None:
    schema = table_schema()
    path = tmp_path / "in.parquet"
    pq.write_table(schema.arrow().empty_table(), path)
    result = merge(task(tmp_path, [MergeInput(path.as_uri(), path.stat().st_size, 0, 1)], schema))
    assert (result.files, result.rows_in, result.rows_out) == ([], 0, 0)


def test_files_of_other_programs_are_read_by_name(tmp_path: Path) -> None:
    schema = table_schema()
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"name": ["x", None], "id": pa.array([2, 1], pa.int32())}), path)
    result = merge(task(tmp_path, [MergeInput(path.as_uri(), path.stat().st_size, 2, 1)], schema))
    assert "other columns or types" in result.why
    assert read(result).to_pylist() == [{"id": 2, "name": "x", "day": None}, {"id": 1, "name": None, "day": None}]


def damage_size(file: MergeInput) -> MergeInput:
    path_of(file.path).write_bytes(path_of(file.path).read_bytes() + b"x")
    return file


def damage_byte(file: MergeInput) -> MergeInput:
    data = bytearray(path_of(file.path).read_bytes())
    data[len(data) // 4] ^= 1
    path_of(file.path).write_bytes(data)
    return file


def damage_end(file: MergeInput) -> MergeInput:
    data = path_of(file.path).read_bytes()
    path_of(file.path).write_bytes(data[:-1] + b"2")
    return msgspec.structs.replace(file, checksum=None)


def damage_footer(file: MergeInput) -> MergeInput:
    data = path_of(file.path).read_bytes()
    path_of(file.path).write_bytes(data[:-200] + bytes(192) + data[-8:])
    return msgspec.structs.replace(file, checksum=None)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (damage_size, "bytes where the registry says"),
        (damage_byte, "not have the checksum of its row"),
        (damage_end, "not a Parquet file"),
        (damage_footer, "damaged|can't be read"),
        (lambda file: msgspec.structs.replace(file, rows=5), "4 rows where the registry says 5"),
        (
            lambda file: msgspec.structs.replace(file, schema_version=9),
            "schema version 9, which shop.orders does not have",
        ),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, damage: Callable[[MergeInput], MergeInput], why: str) -> None:
    inputs = group(tmp_path, PLAIN)
    inputs[1] = damage(inputs[1])
    with pytest.raises(MergeFailed, match=rf"in-1\.parquet.*({why})"):
        merge(task(tmp_path, inputs, PLAIN))


def test_damage_without_a_checksum_is_found_by_the_decoder(tmp_path: Path) -> None:
    """A damaged file gives an error, or the rows that any reader sees."""
    inputs = [msgspec.structs.replace(file, checksum=None) for file in group(tmp_path, SORTED, rows=50)]
    path = path_of(inputs[1].path)
    whole = path.read_bytes()
    for seed in range(20):
        chance = random.Random(seed)
        data = bytearray(whole)
        data[chance.randrange(4, len(data) - 8)] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        with contextlib.suppress(MergeFailed):
            assert merge(task(tmp_path, inputs, SORTED)).proven


def with_ids(name: str, kind: pa.DataType, field_id: int | None) -> pa.Field:
    return pa.field(name, kind, metadata={} if field_id is None else {"PARQUET:field_id": str(field_id)})


@pytest.mark.parametrize(
    "columns",
    [
        [with_ids("a", pa.int64(), 1), with_ids("b", pa.int64(), 99)],
        [with_ids("a", pa.int64(), 1), with_ids("b", pa.int64(), None)],
        [with_ids("a", pa.int64(), None), with_ids("c", pa.int64(), None)],
        [with_ids("a", pa.int64(), 1), with_ids("s", pa.struct([with_ids("x", pa.int64(), 98)]), 3)],
    ],
)
def test_a_column_that_the_table_never_had_is_refused(tmp_path: Path, columns: list[pa.Field]) -> None:
    schema = table_schema(Schema(*NUMBERS.fields, NestedField(3, "s", StructType(NestedField(4, "x", LongType())))))
    good = write(tmp_path / "good.parquet", rows_of(schema, {"a": 1, "b": 2, "s": {"x": 3}}), schema)
    path = tmp_path / "foreign.parquet"
    pq.write_table(pa.Table.from_pylist([{"a": 1, "b": 7, "c": 7, "s": {"x": 7}}], pa.schema(columns)), path)
    foreign = MergeInput(path.as_uri(), path.stat().st_size, 1, 1)
    with pytest.raises(BadInput, match=r"foreign.parquet has a column .* never had") as caught:
        merge(task(tmp_path, [good, foreign], schema))
    assert caught.value.path == foreign.path
    # A column that was dropped is not one that never was.
    retired = task(tmp_path, [good, foreign], schema, retired_ids=(98, 99))
    ids = {int(field.metadata[b"PARQUET:field_id"]) for field in columns if field.metadata}
    if ids == {1, 99}:
        assert read(merge(retired)).to_pylist()[1] == {"a": 1, "b": None, "s": None}


@pytest.mark.parametrize("error", [KeyError("x"), OverflowError("x"), OSError("x"), pa.ArrowInvalid("x")])
def test_errors_of_reading_name_the_file(error: Exception) -> None:
    with pytest.raises(BadInput, match=r"^file:///x can't be read: ") as caught, reading("file:///x"):
        raise error
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  (ours)
    assert (copied.path, copied.reason, str(copied)) == ("file:///x", caught.value.reason, str(caught.value))


@pytest.mark.parametrize("error", [MemoryError(), OSError(12, "x"), pa.ArrowMemoryError("x"), ObjectMissing("x")])
def test_errors_that_are_not_the_files_fault_are_raised_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)), reading("file:///x"):
        raise error


def test_a_missing_file(tmp_path: Path) -> None:
    inputs = group(tmp_path, PLAIN)
    path_of(inputs[1].path).unlink()
    with pytest.raises(ObjectMissing, match="in-1"):
        merge(task(tmp_path, inputs, PLAIN))


@pytest.mark.parametrize(
    ("schema", "strategy", "why"),
    [
        (PLAIN, "sort", "shop.orders has no sort_by"),
        (PLAIN, "zorder", "shop.orders has no sort_by"),
        (table_schema(format="json"), "auto", "is in json: only Parquet"),
        (table_schema(compression="rar"), "auto", "shop.orders: .*compression"),
    ],
)
def test_tables_that_cant_be_merged(tmp_path: Path, schema: TableSchema, strategy: str, why: str) -> None:
    with pytest.raises(MergeFailed, match=why):
        merge(task(tmp_path, group(tmp_path, PLAIN), schema, strategy=strategy))


def test_a_group_of_nothing() -> None:
    with pytest.raises(MergeFailed, match="needs inputs"):
        merge(MergeTask(operation_id="x", table="a.b", partition_path="", inputs=(), outputs=(), versions=()))


def lose(table: pa.Table) -> pa.Table:
    return table.slice(1)


def double(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(1), table.slice(1, 1)])


def swap(table: pa.Table) -> pa.Table:
    return table.set_column(0, table.schema.field(0), table.column(0).take(pa.array(range(table.num_rows))[::-1]))


@pytest.mark.parametrize("damage", [lose, double, swap])
def test_a_result_with_other_rows_is_never_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[pa.Table], pa.Table]
) -> None:
    monkeypatch.setattr(engine, "arrange", lambda *given: damage(arrange(*given)))
    with pytest.raises(MergeFailed, match="do not hold the rows of the old files"):
        merge(task(tmp_path, group(tmp_path, SORTED), SORTED))


@pytest.mark.parametrize("schema", [PLAIN, SORTED])
def test_bytes_that_are_not_those_that_were_written_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: TableSchema
) -> None:
    """One bit anywhere in the file was changed by the storage."""
    inputs = group(tmp_path, schema)
    output = tmp_path / "out-0.parquet"
    chance = random.Random(1)

    class Careless(Objects):
        async def write(self, uri: str, fill: Callable[..., object]) -> object:  # type: ignore[override]
            made = await super().write(uri, fill)
            data = bytearray(output.read_bytes())
            data[chance.randrange(4, len(data))] ^= 1 << chance.randrange(8)
            output.write_bytes(data)
            return made

    monkeypatch.setattr(engine, "Objects", Careless)
    for _ in range(30):
        with pytest.raises(MergeFailed, match=r"stored|do not hold|Parquet|damaged"):
            merge(task(tmp_path, inputs, schema, copy_above_bytes=0))


def test_columns_with_few_values_are_read_as_dictionaries(tmp_path: Path) -> None:
    """Through a rename, in files without the column, and as a sort key."""
    old = table_schema(Schema(NestedField(1, "id", LongType()), NestedField(2, "state", StringType())))
    named = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "status", StringType()), NestedField(3, "raw", BinaryType())
    )
    order = order_of((2, IdentityTransform(), "desc first"), (1, IdentityTransform(), "asc first"))
    new = dataclasses.replace(table_schema(named, order=order), version=2)
    states = [None, "new", "a state with a long name", "", "done"]
    first: list[dict[str, Any]] = [{"id": number, "state": states[number % 5]} for number in range(2_000)]
    later: list[dict[str, Any]] = [
        {"id": -number, "status": f"late {number % 3}", "raw": b"raw" * 5} for number in range(2_000)
    ]
    inputs = [write(tmp_path / "old.parquet", rows_of(old, *first), old)]
    inputs.append(write(tmp_path / "new.parquet", rows_of(new, *later), new))
    made = task(tmp_path, inputs, new, old)
    result = merge(made)
    assert result.strategy == "sort"
    expected: list[dict[str, Any]] = [{"id": row["id"], "status": row["state"], "raw": None} for row in first] + later
    expected.sort(key=lambda row: row["id"])
    expected.sort(key=lambda row: row["status"] or "", reverse=True)
    expected.sort(key=lambda row: row["status"] is not None)
    rows = read(result)
    assert rows.schema.equals(new.arrow())
    assert rows.to_pylist() == expected
    engine = engine_of(new).write(rows, new, io.BytesIO())
    ours, theirs = (
        {key: (each.lower, each.upper, each.null_count, each.value_count) for key, each in stats.items()}
        for stats in (
            parse_json_as(found, dict[int, ColumnStats])
            for found in (result.files[0].column_stats, engine.column_stats)
            if found is not None
        )
    )
    assert ours == theirs
