"""Kafka Connect's JsonConverter and Debezium's ExtractNewRecordState, from their published jars, read our records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
import pytest

from astha.events import Operation
from components.lib.change_formats import ChangeFormat, FormatSettings, open_format
from registry.json_text import JsonText
from registry.models import PUBLISHED, Row
from tests.fixtures.rows import extreme_rows
from tests.servers.debezium.reader import ConnectRecord, Record, Seen, read_records
from tests.unit.components.lib.change_formats.examples import (
    COMMITTED_AT_US,
    NOW_MS,
    ORIGIN,
    commit,
    delete,
    insert,
    update,
)

pytestmark = pytest.mark.slow

INT32_COLUMNS = {"partition_count", "partition_id", "schema_version", "schema_id", "spec_id"}


class Case(NamedTuple):
    """A record, and what a reader of rows has to see: the row with the envelope's `op`, or a tombstone."""

    record: Record
    row: Row
    op: str | None  # None: a tombstone
    before: Row | None = None
    after: Row | None = None


def _cases(encoder: ChangeFormat) -> Iterator[Case]:
    for row in extreme_rows():
        topic = f"{ORIGIN.name}.{row.table}"
        for event in (insert(row, commit(9), 0), update(_changed(row), row, commit(9), 1), delete(row, commit(9), 2)):
            sent = encoder.change(event, ORIGIN, NOW_MS)
            after = None if event.operation is Operation.DELETE else row
            op = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}[event.operation]
            yield Case(Record(topic, sent.key, sent.value), row, op, event.before, after)
        tombstone = encoder.tombstone(encoder.key(row, ORIGIN))
        yield Case(Record(topic, tombstone.key, tombstone.value), row, None)
        read = encoder.snapshot_row(row, commit().position, ORIGIN, NOW_MS, last=True)
        yield Case(Record(topic, read.key, read.value), row, "r", None, row)


@pytest.fixture(scope="module", params=[True, False], ids=["with schemas", "without schemas"])
def schemas(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def taken(schemas: bool) -> list[tuple[Case, Seen]]:
    cases = list(_cases(open_format(FormatSettings(schemas=schemas), "kafka")))
    return list(zip(cases, read_records([case.record for case in cases], schemas), strict=True))


def test_the_converter_reads_keys_and_envelopes_field_by_field(taken: list[tuple[Case, Seen]]) -> None:
    assert {type(case.row) for case, _ in taken} == set(PUBLISHED)
    for case, seen in taken:
        assert seen.converted.key == {name: getattr(case.row, name) for name in case.row.key}
        if case.op is None:
            assert seen.converted.value is None
            continue
        assert seen.converted.value["before"] == _columns(case.before)
        assert seen.converted.value["after"] == _columns(case.after)
        assert seen.converted.value["op"] == case.op
        assert seen.converted.value["ts_ms"] == NOW_MS
        assert seen.converted.value["source"]["table"] == case.row.table


def test_the_converter_reads_the_source_and_the_transaction(taken: list[tuple[Case, Seen]]) -> None:
    ops = {"c": 0, "u": 1, "d": 2}
    for case, seen in taken:
        if case.op is None:
            continue
        source, transaction = seen.converted.value["source"], seen.converted.value["transaction"]
        assert source["lsn"] == 95
        assert source["epoch"] == 7
        if case.op == "r":
            assert (source["snapshot"], source["txId"], source["ts_ms"], transaction) == ("last", None, NOW_MS, None)
            assert json.loads(source["sequence"]) == ["95", None]
        else:
            index = ops[case.op]
            assert (source["snapshot"], source["txId"]) == ("false", 1042)
            assert (source["ts_ms"], source["ts_us"]) == (COMMITTED_AT_US // 1000, COMMITTED_AT_US)
            assert json.loads(source["sequence"]) == ["95", str(index)]
            assert (transaction["id"], transaction["total_order"]) == ("1042:95", index + 1)


def test_debezium_extracts_the_rows(taken: list[tuple[Case, Seen]], schemas: bool) -> None:
    """Without a schema it passes a record unchanged, as it does with Debezium's own: it knows envelopes by name."""
    for case, seen in taken:
        assert seen.extracted is not None  # it drops none
        assert seen.extracted.key == seen.converted.key
        if case.op is None:
            assert seen.extracted.value is None
        elif schemas:
            _check_extracted(case, seen.extracted)
        else:
            assert seen.extracted.value == seen.converted.value


def test_columns_have_the_types_that_debezium_gives_them(taken: list[tuple[Case, Seen]], schemas: bool) -> None:
    for case, seen in taken:
        assert seen.extracted is not None
        if not schemas:
            assert seen.converted.key_types is seen.converted.value_types is seen.extracted.value_types is None
            continue
        types = _types(type(case.row))
        assert seen.converted.key_types == {name: types[name] for name in case.row.key}
        if case.op is not None:
            assert seen.converted.value_types["before"] == seen.converted.value_types["after"] == types
            assert {name: seen.extracted.value_types[name] for name in types} == types


def _check_extracted(case: Case, extracted: ConnectRecord) -> None:
    added = {
        "__deleted": "true" if case.op == "d" else "false",
        "__op": case.op,
        "__table": case.row.table,
        "__lsn": 95,
        "__source_ts_ms": NOW_MS if case.op == "r" else COMMITTED_AT_US // 1000,
    }
    values = {name: value for name, value in extracted.value.items() if name != "__transaction_id"}
    assert values == {**(_columns(case.row) or {}), **added}
    assert extracted.value["__transaction_id"] == (None if case.op == "r" else "1042:95")
    assert extracted.headers == {"__op": case.op}


def _changed(row: Row) -> Row:
    """Returns the row with another value of its last integer column. Every table has one that is not in its key."""
    column = [name for name in row.__struct_fields__ if type(getattr(row, name)) is int and name not in row.key][-1]
    return msgspec.structs.replace(row, **{column: 17})


def _columns(row: Row | None) -> dict[str, Any] | None:
    return None if row is None else msgspec.structs.asdict(row)


def _types(kind: type[Row]) -> dict[str, str]:
    hints = get_type_hints(kind)
    return {name: _type(name, hints[name]) for name in kind.__struct_fields__}


def _type(name: str, hint: Any) -> str:
    kinds = {hint, *get_args(hint)}
    optional = "?" if type(None) in kinds else ""
    if JsonText in kinds:
        return f"string io.debezium.data.Json{optional}"
    if bool in kinds:
        return f"boolean{optional}"
    if int in kinds:
        return ("int32" if name in INT32_COLUMNS else "int64") + optional
    return f"string{optional}"
