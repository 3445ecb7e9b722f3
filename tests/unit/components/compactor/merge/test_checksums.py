from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, ListType, LongType, MapType, NestedField, StringType, StructType

from components.compactor.merge.checksums import Checksums, ChunkChecksums
from components.compactor.merge.task import ROWS
from components.lib.lake.schema.table_schema import TableSchema
from tests.lake import EMPTY_ROW, EVERYTHING, FULL_ROW, rows_of, table_schema

SCHEMA = table_schema(
    Schema(
        NestedField(1, "n", LongType()),
        NestedField(2, "x", DoubleType()),
        NestedField(3, "text", StringType()),
        NestedField(4, "list", ListType(5, StringType(), element_required=False)),
        NestedField(6, "place", StructType(NestedField(7, "label", StringType()))),
        NestedField(8, "tags", MapType(9, StringType(), 10, LongType(), value_required=False)),
    )
)


def sums(rows: list[dict[str, Any]] | pa.Table, schema: TableSchema = SCHEMA) -> dict[int, str]:
    found = Checksums(schema)
    found.add(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema.arrow()))
    return found.texts()


def test_checksums_do_not_depend_on_order_and_batches() -> None:
    schema = table_schema(EVERYTHING)
    rows = rows_of(schema, FULL_ROW, EMPTY_ROW, {**FULL_ROW, "id": 3, "double": 1.5}, {**EMPTY_ROW, "scores": []})
    expected = sums(rows, schema)
    assert sums(rows.take([3, 1, 0, 2]), schema) == expected
    assert sums(pa.concat_tables([rows.slice(3), rows.slice(0, 1), rows.slice(1, 2)]), schema) == expected


@pytest.mark.parametrize(
    ("field_id", "column", "values"),
    [
        (1, "n", [None, 0, 1, -1, 2**63 - 1, -(2**63)]),
        (2, "x", [None, 0.0, -0.0, float("nan"), 5e-324, 1.0, float("inf")]),
        (3, "text", [None, "", "\0", "\0\0", "a", "a\0", "x" * 15, "x" * 16, "x" * 17, "x" * 33, "y" * 256, "y" * 257]),
        (3, "text", ["z" * 5_000, "z" * 5_001, "z" * 2_500 + "y" + "z" * 2_499, "y" + "z" * 4_999]),
        (5, "list", [None, [], [None], [""], ["", ""], ["a", "b"], ["b", "a"], [None, None], ["ab"]]),
        (7, "place", [None, {"label": None}, {"label": ""}, {"label": "a"}]),
        (10, "tags", [None, [], [("a", None)], [("a", 0)], [("a", 0), ("b", 0)], [("a", 1), ("b", 0)]]),
        (9, "tags", [None, [], [("a", 0)], [("b", 0)], [("a", 0), ("b", 0)], [("b", 0), ("a", 0)]]),
    ],
)
def test_values_that_differ_have_different_sums(field_id: int, column: str, values: list[Any]) -> None:
    found = [sums([{column: value}]) for value in values]
    assert len({each[field_id] for each in found}) == len(values)
    assert len({each[ROWS] for each in found}) == len(values)


def test_exchanged_values_are_noticed_by_the_row_checksum() -> None:
    before = sums([{"n": 1, "text": "a"}, {"n": 2, "text": "b"}])
    after = sums([{"n": 2, "text": "a"}, {"n": 1, "text": "b"}])
    assert [key for key in before if before[key] != after[key]] == [ROWS]


def test_a_value_in_another_column_is_noticed() -> None:
    schema = table_schema(Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType())))
    assert sums([{"a": 1, "b": 2}], schema)[ROWS] != sums([{"a": 2, "b": 1}], schema)[ROWS]


def test_a_dictionary_has_the_checksums_of_its_values() -> None:
    texts = pa.chunked_array([["b", None, "a"], ["a", "", "b"], pa.array([None], pa.string())])
    plain = pa.table([texts.cast(pa.large_string())], schema=pa.schema([SCHEMA.arrow().field("text")]))
    encoded = pa.table([pa.chunked_array([chunk.dictionary_encode() for chunk in texts.chunks])], names=["text"])
    schema = table_schema(Schema(NestedField(3, "text", StringType())))
    assert sums(encoded, schema) == sums(plain, schema)
    assert sums(encoded.slice(1, 4), schema) == sums(plain.slice(1, 4), schema)


@pytest.mark.parametrize("length", [1, 7, 8, 15, 16, 17, 32, 33, 48, 255, 256, 257])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_texts_of_one_length_have_the_same_sums_as_among_others(length: int, kind: pa.DataType) -> None:
    """Batches of one length take another way than mixed ones, and what is read back has other batches."""
    schema = table_schema(Schema(NestedField(3, "text", StringType())))
    texts = [(f"{number:03}" * 100)[number % 3 :][:length] for number in range(200)]

    def found(*batches: Sequence[str | None]) -> dict[int, str]:
        return sums(pa.table({"text": pa.chunked_array([pa.array(batch, kind) for batch in batches])}), schema)

    other = ["", "x" * 40, None]
    assert found(texts, other) == found([*texts[:50], *other, *texts[50:]]) == found(texts[::2], texts[1::2], other)
    changed = texts[7][:-1] + "?"
    assert found([*texts[:7], changed, *texts[8:]], other)[3] != found(texts, other)[3]
    sliced = pa.chunked_array([pa.array(["y" * 3, *texts], kind).slice(1)])
    assert sums(pa.table({"text": sliced}), schema) == found(texts)


def lose(rows: list[dict[str, Any]], chance: random.Random) -> None:
    rows.pop(chance.randrange(len(rows)))


def double(rows: list[dict[str, Any]], chance: random.Random) -> None:
    rows.append(chance.choice(rows))


def replace(rows: list[dict[str, Any]], chance: random.Random) -> None:
    """One row is lost and another duplicated, so the number of rows is right."""
    one, other = chance.sample(range(len(rows)), 2)
    rows[one] = rows[other]


def change(rows: list[dict[str, Any]], chance: random.Random) -> None:
    column = chance.choice(list(rows[0]))
    place = chance.randrange(len(rows))
    others = [row[column] for row in rows if row[column] != rows[place][column]]
    rows[place] = {**rows[place], column: chance.choice(others)}


def swap(rows: list[dict[str, Any]], chance: random.Random) -> None:
    column = chance.choice(list(rows[0]))
    one = chance.randrange(len(rows))
    other = next(place for place, row in enumerate(rows) if row[column] != rows[one][column])
    rows[one], rows[other] = {**rows[one], column: rows[other][column]}, {**rows[other], column: rows[one][column]}


def nullify(rows: list[dict[str, Any]], chance: random.Random) -> None:
    column = chance.choice(list(rows[0]))
    place = next(place for place, row in enumerate(rows) if row[column] is not None)
    rows[place] = {**rows[place], column: None}


@pytest.mark.parametrize("damage", [lose, double, replace, change, swap, nullify])
def test_no_damage_goes_unnoticed(damage: Callable[[list[dict[str, Any]], random.Random], None]) -> None:
    for seed in range(60):
        chance = random.Random(seed)
        rows = [
            {
                "n": number,
                "x": chance.random(),
                "text": None if chance.random() < 0.2 else f"t{number}" * chance.randrange(9),
                "list": [str(chance.randrange(3)) for _ in range(chance.randrange(4))],
                "place": chance.choice([None, {"label": None}, {"label": f"{number}"}]),
                "tags": [(f"{chance.randrange(3)}", number)],
            }
            for number in range(20)
        ]
        before = sums(rows)
        damage(rows, chance)
        chance.shuffle(rows)
        after = sums(rows)
        assert before[ROWS] != after[ROWS], seed
        if damage is not swap:
            assert sum(before[key] != after[key] for key in before) > 1, seed


def test_chunks_may_change_their_order_and_nothing_else() -> None:
    schema = table_schema(Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType())))

    def found(*groups: tuple[bytes, bytes]) -> dict[int, str]:
        total = ChunkChecksums(schema)
        for group in groups:
            total.add([memoryview(chunk) for chunk in group])
        return total.texts()

    one, other = (b"aaaa", b"bbbb"), (b"cccc", b"dddd")
    expected = found(one, other)
    assert found(other, one) == expected
    assert found(one)[1] != expected[1]
    assert found(one, one)[1] != expected[1]
    assert found((b"aaab", b"bbbb"), other)[1] != expected[1]
    mixed = found((b"aaaa", b"dddd"), (b"cccc", b"bbbb"))
    assert [key for key in mixed if mixed[key] != expected[key]] == [ROWS]
    assert found((b"bbbb", b"aaaa"), other)[ROWS] != expected[ROWS]
