from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

import msgspec
import pytest

from astha.errors import ConfigError, DecodeError
from astha.events import Operation
from astha.sources.sqlite.changelog import HEADERS, Header, LogDecoder, RowChange, Stretch, decode_headers
from registry import changelog
from registry.documents import Document
from registry.models import PUBLISHED, Row, TableFile, Topic
from tests.fixtures.rows import extreme_rows

TOPIC = Topic("t", 1, None, Document('{"a":1}'), 2, 3)


@pytest.fixture
def log() -> Iterator[sqlite3.Connection]:
    """The log alone, without the tables whose triggers fill it."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in changelog.CREATE:
        connection.execute(statement)
    yield connection
    connection.close()


def image(row: Row, **changed: object) -> str:
    """As json_object would put it: documents as text, booleans as numbers."""
    values = {**msgspec.structs.asdict(row), **changed}
    return json.dumps({name: int(value) if isinstance(value, bool) else value for name, value in values.items()})


def write(
    log: sqlite3.Connection, table: str, operation: str, before: str | None, after: str | None, number: int | None = 7
) -> None:
    log.execute("INSERT INTO change_log VALUES (NULL, ?, 1000, ?, ?, ?, ?)", (number, table, operation, before, after))


def stretch(log: sqlite3.Connection, statement: str, after: int = 0, rows: int = 100) -> Stretch:
    return Stretch(*log.execute(statement, (after, rows)).fetchone())


def decoded(log: sqlite3.Connection, *tables: str) -> list[RowChange | Header]:
    decoder = LogDecoder(frozenset(tables))
    return decoder.decode(stretch(log, decoder.statement))


def only_row(log: sqlite3.Connection, *tables: str) -> RowChange:
    (change,) = decoded(log, *tables)
    assert isinstance(change, RowChange)
    return change


def test_an_insert(log: sqlite3.Connection) -> None:
    write(log, "topics", "INSERT", None, image(TOPIC))
    change = only_row(log, "topics")
    assert (change.sequence, change.transaction_number, change.changed_at) == (1, 7, 1000)
    assert (change.operation, change.table) == (Operation.INSERT, "topics")
    assert (change.before, change.after) == (None, TOPIC)
    assert change.size_bytes == len(image(TOPIC))


def test_an_update_and_a_delete(log: sqlite3.Connection) -> None:
    new = msgspec.structs.replace(TOPIC, retention_ms=5)
    write(log, "topics", "UPDATE", image(TOPIC), image(new), None)
    write(log, "topics", "DELETE", image(new), None, None)
    update, delete = decoded(log, "topics")
    assert isinstance(update, RowChange)
    assert isinstance(delete, RowChange)
    assert (update.operation, update.before, update.after) == (Operation.UPDATE, TOPIC, new)
    assert (delete.operation, delete.before, delete.after) == (Operation.DELETE, new, None)
    assert update.transaction_number is None


@pytest.mark.parametrize("row", extreme_rows(), ids=lambda row: type(row).__name__)
def test_every_model_comes_back_equal_and_of_the_same_types(log: sqlite3.Connection, row: Row) -> None:
    write(log, row.table, "INSERT", None, image(row))
    found = only_row(log, row.table).after
    assert found == row
    assert found is not None
    assert [type(value) for value in msgspec.structs.astuple(found)] == [
        type(value) for value in msgspec.structs.astuple(row)
    ]


def test_unknown_columns_are_ignored(log: sqlite3.Connection) -> None:
    write(log, "topics", "INSERT", None, image(TOPIC, colour="blue"))
    assert only_row(log, "topics").after == TOPIC


def test_a_missing_column_is_named(log: sqlite3.Connection) -> None:
    write(log, "topics", "INSERT", None, '{"name": "t"}')
    with pytest.raises(DecodeError, match=r"sequence 1: .*missing required field `partition_count`"):
        decoded(log, "topics")


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [
        ("INSERT", None, None),
        ("INSERT", image(TOPIC), image(TOPIC)),
        ("UPDATE", None, image(TOPIC)),
        ("UPDATE", image(TOPIC), None),
        ("DELETE", None, None),
        ("DELETE", image(TOPIC), image(TOPIC)),
        ("INSERT", None, image(TOPIC, partition_count=None)),
        ("INSERT", None, image(TOPIC, partition_count="many")),
        ("INSERT", None, image(TOPIC, config=5)),
        ("INSERT", None, image(TOPIC, config=None)),
        ("INSERT", None, "[]"),
        ("INSERT", None, "not JSON"),
        ("INSERT", None, '{"name": "t"'),
        ("INSERT", None, ""),
        ("INSERT", None, image(TOPIC) + '],["",2,7,1000,"topics"'),
    ],
)
def test_garbage_is_a_decode_error(
    log: sqlite3.Connection, operation: str, before: str | None, after: str | None
) -> None:
    write(log, "topics", operation, before, after)
    with pytest.raises(DecodeError, match="sequence 1"):
        decoded(log, "topics")


def test_an_operation_or_status_that_is_not_one_is_an_error(log: sqlite3.Connection) -> None:
    file = next(row for row in extreme_rows() if isinstance(row, TableFile))
    write(log, "table_files", "INSERT", None, image(file, operation="magic"))
    with pytest.raises(DecodeError, match="magic"):
        decoded(log, "table_files")


def test_tables_nobody_subscribes_to_are_not_decoded(log: sqlite3.Connection) -> None:
    write(log, "topics", "INSERT", None, "not JSON", None)
    write(log, 'odd "name"', "INSERT", None, "not JSON")
    assert decoded(log, "tables") == [Header(1, None, 1000, "topics"), Header(2, 7, 1000, 'odd "name"')]
    assert len(decoded(log)) == 2


def test_headers_tell_the_table_only(log: sqlite3.Connection) -> None:
    write(log, "topics", "INSERT", None, "not JSON")
    assert decode_headers(stretch(log, HEADERS)) == [Header(1, 7, 1000, "topics")]


def test_a_table_that_is_not_published_is_refused() -> None:
    with pytest.raises(ConfigError, match="ledger"):
        LogDecoder(frozenset({"ledger", "topics"}))


def test_stretches(log: sqlite3.Connection) -> None:
    decoder = LogDecoder(frozenset())
    empty = stretch(log, decoder.statement)
    assert (empty.last, empty.count, empty.reaches_the_end, empty.has_holes) == (0, 0, True, False)
    assert decoder.decode(empty) == []
    for _ in range(5):
        write(log, "topics", "INSERT", None, None)
    part = stretch(log, decoder.statement, after=1, rows=3)
    assert (part.last, part.count, part.first, part.end) == (5, 3, 2, 4)
    assert not part.reaches_the_end
    assert stretch(log, decoder.statement, after=1).reaches_the_end
    log.execute("DELETE FROM change_log WHERE sequence = 3")
    assert stretch(log, decoder.statement).has_holes
    log.execute("DELETE FROM change_log")
    trimmed = stretch(log, decoder.statement)
    assert (trimmed.last, trimmed.count, trimmed.reaches_the_end) == (5, 0, True)


def test_all_published_tables_together(log: sqlite3.Connection) -> None:
    rows = extreme_rows()
    for row in rows:
        write(log, row.table, "INSERT", None, image(row))
    changes = decoded(log, *(kind.table for kind in PUBLISHED))
    assert [change.after for change in changes if isinstance(change, RowChange)] == rows
