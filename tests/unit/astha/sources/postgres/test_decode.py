"""pgoutput, decoded: from messages made by hand, and from garbage."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astha.errors import AsthaError, ConfigError, DecodeError
from astha.events import Operation, Transaction
from astha.sources.limits import TransactionLimits
from astha.sources.postgres.decode import POSTGRES_EPOCH_US, Decoder
from registry.json_text import JsonText
from registry.models import PUBLISHED, ConsumerGroup, ConsumerOffset, Row, TableFile, Topic
from registry.schema import table_of
from tests.doubles import pgoutput as pg
from tests.fixtures.rows import extreme_rows

KINDS = {kind.table: kind for kind in PUBLISHED}
OIDS = {kind: 1_000 + number for number, kind in enumerate(PUBLISHED)}
RELATIONS = [pg.relation(OIDS[kind], kind.table, pg.columns_of(kind)) for kind in PUBLISHED]

TOPIC = Topic("orders", 3, None, JsonText('{"a":1}'), 5, 6)
GROUP = ConsumerGroup("readers", 1, 2)


def decoder(*, tables: dict[str, type[Row]] = KINDS, limits: TransactionLimits | None = None) -> Decoder:
    return Decoder(tables, "public", limits)


def feed(messages: list[bytes], into: Decoder | None = None) -> list[Transaction]:
    into = into or decoder()
    return [done for message in messages if (done := into.feed(message)) is not None]


def one(*messages: bytes, into: Decoder | None = None) -> Transaction:
    (transaction,) = feed([*RELATIONS, pg.begin(77), *messages, pg.commit()], into)
    return transaction


def test_a_transaction() -> None:
    changed = msgspec.structs.replace(TOPIC, partition_count=4, retention_ms=9)
    transaction = one(
        pg.insert(OIDS[Topic], pg.values_of(TOPIC)),
        pg.insert(OIDS[ConsumerGroup], pg.values_of(GROUP)),
        pg.update(OIDS[Topic], pg.values_of(TOPIC), pg.values_of(changed)),
        pg.delete(OIDS[ConsumerGroup], pg.values_of(GROUP)),
    )
    assert [(event.operation, event.data, event.before) for event in transaction.events] == [
        (Operation.INSERT, TOPIC, None),
        (Operation.INSERT, GROUP, None),
        (Operation.UPDATE, changed, TOPIC),
        (Operation.DELETE, GROUP, GROUP),
    ]
    assert transaction.tables == {"topics", "consumer_groups"}
    assert (transaction.commit.transaction, transaction.position, transaction.commit.count) == (77, 1_008, 4)
    assert transaction.commit.committed_at == POSTGRES_EPOCH_US
    assert [event.index for event in transaction.events] == [0, 1, 2, 3]


@pytest.mark.parametrize("row", extreme_rows(), ids=lambda row: row.table)
def test_every_column_of_every_table(row: Row) -> None:
    transaction = one(pg.insert(OIDS[type(row)], pg.values_of(row)))
    (event,) = transaction.events
    assert event.data == row
    assert [type(value) for value in msgspec.structs.astuple(event.data)] == [
        type(value) for value in msgspec.structs.astuple(row)
    ]


@given(st.data())
def test_any_columns_that_may_be_null(data: st.DataObject) -> None:
    """Alone, beside each other, beside values: every combination is decoded, whatever the fast path expects."""
    row = data.draw(st.sampled_from(extreme_rows()))
    nullable = [column.name for column in table_of(type(row)).columns if column.nullable]
    absent = data.draw(st.sets(st.sampled_from(nullable)) if nullable else st.just(set[str]()))
    some = msgspec.structs.replace(row, **dict.fromkeys(absent))
    transaction = one(
        pg.insert(OIDS[type(row)], pg.values_of(some)),
        pg.update(OIDS[type(row)], pg.values_of(some), pg.values_of(row)),
    )
    assert [(event.before, event.data) for event in transaction.events] == [(None, some), (some, row)]


def test_null_before_image() -> None:
    """Columns that were NULL before and after, in the middle and at the end of a row."""
    before = ConsumerOffset("g", "t", 0, 1, None, 1)
    after = msgspec.structs.replace(before, metadata="m")
    oid = OIDS[ConsumerOffset]
    transaction = one(
        pg.update(oid, pg.values_of(before), pg.values_of(after)),
        pg.update(oid, pg.values_of(after), pg.values_of(before)),
    )
    assert [(event.before, event.data) for event in transaction.events] == [(before, after), (after, before)]


def test_unchanged_toast_is_taken_from_the_old_row() -> None:
    before = msgspec.structs.replace(TOPIC, config=JsonText('{"large":"' + "x" * 100_000 + '"}'))
    after = msgspec.structs.replace(before, updated_at=99)
    (event,) = one(pg.update(OIDS[Topic], pg.values_of(before), pg.values_of(after, {"config": pg.Unchanged()}))).events
    assert event.data == after
    assert event.before == before


BARE = ConsumerOffset("g", "t", 0, 1, None, 1)
TOASTED = pg.values_of(TOPIC, {"config": pg.Unchanged()})


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(pg.insert(OIDS[Topic], TOASTED), id="insert"),
        pytest.param(pg.delete(OIDS[Topic], TOASTED), id="delete"),
        pytest.param(pg.update(OIDS[Topic], TOASTED, pg.values_of(TOPIC)), id="old row"),
        pytest.param(pg.update(OIDS[Topic], TOASTED, TOASTED), id="both rows"),
        pytest.param(
            pg.update(OIDS[ConsumerOffset], pg.values_of(BARE), pg.values_of(BARE, {"metadata": pg.Unchanged()})),
            id="the old row has NULL",
        ),
        pytest.param(
            pg.update(OIDS[Topic], pg.values_of(TOPIC), pg.values_of(TOPIC, {"partition_count": pg.Unchanged()})),
            id="a column that is never TOASTed",
        ),
    ],
)
def test_an_unchanged_marker_in_an_insert_or_an_old_row(message: bytes) -> None:
    with pytest.raises(DecodeError, match="unchanged TOASTed value"):
        one(message)


@pytest.mark.parametrize("name", ["name", "partition_count"])
def test_null_in_a_column_that_is_not_nullable(name: str) -> None:
    with pytest.raises(DecodeError, match="is NULL, which is not allowed there"):
        one(pg.insert(OIDS[Topic], pg.values_of(TOPIC, {name: None})))


@pytest.mark.parametrize(
    "text", ["", "-", "1_0", " 1", "+1", "1.0", "2147483648", "-2147483649", "9" * 5_000, "\u0661"]
)
def test_an_invalid_integer_in_text_form(text: str) -> None:
    with pytest.raises(DecodeError):
        one(pg.insert(OIDS[Topic], pg.values_of(TOPIC, {"partition_count": pg.InText(text)})))


@pytest.mark.parametrize("text", ["", "true", "x", "T"])
def test_an_invalid_boolean_in_text_form(text: str) -> None:
    row = next(row for row in extreme_rows() if isinstance(row, TableFile))
    with pytest.raises(DecodeError, match="a boolean"):
        one(pg.insert(OIDS[TableFile], pg.values_of(row, {"is_compressed": pg.InText(text)})))


def test_values_in_text_form() -> None:
    """A server may send any column as text: a type without a binary form, a plugin that was not asked for binary."""
    oid = OIDS[TableFile]
    row = next(row for row in extreme_rows() if isinstance(row, TableFile))
    as_text = {
        name: pg.InText({True: "t", False: "f"}[value] if isinstance(value, bool) else str(value))
        for name, value in msgspec.structs.asdict(row).items()
    }
    (event,) = one(pg.insert(oid, pg.values_of(row, as_text))).events
    assert event.data == row
    assert type(event.data.is_compressed) is bool


def test_columns_in_another_order() -> None:
    columns = pg.columns_of(Topic)
    values = pg.values_of(TOPIC)
    mixed = [3, 0, 5, 1, 4, 2]
    relation = pg.relation(1, "topics", [columns[place] for place in mixed])
    (done,) = feed([relation, pg.begin(1), pg.insert(1, [values[place] for place in mixed]), pg.commit()])
    assert done.events[0].data == TOPIC


@pytest.mark.parametrize(
    ("type_oid", "value"),
    [(pg.TEXT, "more"), (pg.INT8, pg.Wide(7)), (pg.UUID, b"\xff\xfe" * 8), (pg.JSONB, b"\x01{}"), (pg.UUID, None)],
)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_an_unknown_column_is_skipped_whatever_its_type(type_oid: int, value: object, place: int) -> None:
    columns, values = pg.columns_of(Topic), pg.values_of(TOPIC)
    columns.insert(place, ("added", type_oid))
    values.insert(place, value)
    before, after = list(values), list(values)
    into = decoder()
    feed([*RELATIONS, pg.relation(OIDS[Topic], "topics", columns)], into)  # while streaming
    messages = [pg.begin(1), pg.insert(OIDS[Topic], values), pg.update(OIDS[Topic], before, after), pg.commit()]
    (done,) = feed(messages, into)
    assert [event.data for event in done.events] == [TOPIC, TOPIC]


def test_a_dropped_column_is_a_config_error() -> None:
    columns = [column for column in pg.columns_of(Topic) if column[0] != "config"]
    with pytest.raises(ConfigError, match=r"topics .* config.*astha check"):
        feed([pg.relation(1, "topics", columns)])


def test_a_column_of_an_unknown_type_is_a_config_error() -> None:
    columns = [(name, pg.JSONB if name == "config" else oid) for name, oid in pg.columns_of(Topic)]
    with pytest.raises(ConfigError, match="config"):
        feed([pg.relation(1, "topics", columns)])


def test_a_table_without_full_identity_causes_refreshes_and_no_error() -> None:
    relation = pg.relation(OIDS[Topic], "topics", pg.columns_of(Topic), identity=b"d")
    key = [*pg.values_of(TOPIC)[:1], *[None] * 5]
    for change in (
        pg.update_without_old(OIDS[Topic], pg.values_of(TOPIC)),
        pg.update(OIDS[Topic], key, pg.values_of(TOPIC), kind=b"K"),
        pg.delete(OIDS[Topic], key, kind=b"K"),
    ):
        into = decoder()
        feed([*RELATIONS, relation], into)
        (done,) = feed([pg.begin(1), pg.insert(OIDS[ConsumerGroup], pg.values_of(GROUP)), change, pg.commit()], into)
        assert done.unlisted == {"topics"}
        assert done.tables == {"topics", "consumer_groups"}
        assert [event.data for event in done.events] == [GROUP]


def test_a_truncate_names_its_tables() -> None:
    transaction = one(pg.insert(OIDS[ConsumerGroup], pg.values_of(GROUP)), pg.truncate(OIDS[Topic], OIDS[TableFile]))
    assert transaction.unlisted == {"topics", "table_files"}
    assert transaction.tables == {"topics", "table_files", "consumer_groups"}
    assert len(transaction.events) == 1


def test_tables_of_the_same_name_in_another_schema_are_ignored() -> None:
    into = decoder()
    feed([pg.relation(1, "topics", [("x", pg.UUID)], schema="other")], into)
    messages = [pg.begin(1), pg.insert(1, [b"\xff"]), pg.truncate(1), pg.commit()]
    (done,) = feed(messages, into)
    assert done.tables == frozenset()
    assert done.unlisted == frozenset()


def test_a_table_without_a_subscriber_is_not_decoded() -> None:
    into = decoder(tables={"topics": Topic})
    feed(RELATIONS, into)
    garbage = pg.data(b"I" + struct.pack(">I", OIDS[ConsumerGroup]) + b"garbage")
    (done,) = feed([pg.begin(1), garbage, pg.commit()], into)
    assert done.events == []
    assert done.tables == frozenset()


def test_a_transaction_beyond_the_limits_keeps_no_rows() -> None:
    into = decoder(limits=TransactionLimits(events=10))
    inserts = [pg.insert(OIDS[ConsumerGroup], pg.values_of(ConsumerGroup(f"g{n}", 0, 0))) for n in range(11)]
    large = one(*inserts, pg.delete(OIDS[Topic], pg.values_of(TOPIC)), into=into)
    assert large.events == []
    assert large.unlisted == large.tables == {"consumer_groups", "topics"}
    small = feed([pg.begin(2, 2_000), *inserts[:10], pg.commit(2_000)], into)
    assert len(small[0].events) == 10
    assert small[0].unlisted == frozenset()


def test_bytes_are_limited_too() -> None:
    into = decoder(limits=TransactionLimits(size_bytes=1_000))
    large = one(pg.insert(OIDS[Topic], pg.values_of(TOPIC, {"name": "x" * 1_000})), into=into)
    assert large.events == []
    assert large.unlisted == {"topics"}


def test_a_relation_that_changes_between_two_rows() -> None:
    columns, values = pg.columns_of(ConsumerGroup), pg.values_of(GROUP)
    oid = OIDS[ConsumerGroup]
    transaction = one(
        pg.insert(oid, values),
        pg.relation(oid, "consumer_groups", [("new", pg.TEXT), *columns]),
        pg.insert(oid, ["first", *values]),
    )
    assert [event.data for event in transaction.events] == [GROUP, GROUP]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([pg.insert(5, [])], id="an unknown relation"),
        pytest.param([pg.begin(1), pg.truncate(5)], id="truncate of an unknown relation"),
        pytest.param([pg.truncate(OIDS[Topic])], id="truncate outside a transaction"),
        pytest.param([pg.begin(1), pg.begin(2)], id="a beginning in a transaction"),
        pytest.param([pg.commit()], id="a commit without a beginning"),
        pytest.param([pg.begin(1, 10), pg.commit(20)], id="a commit of another transaction"),
        pytest.param([pg.begin(1, 10), pg.commit(10, 9)], id="a commit that ends before it starts"),
        pytest.param([pg.insert(OIDS[Topic], pg.values_of(TOPIC))], id="a row outside a transaction"),
        pytest.param([pg.begin(1), pg.insert(OIDS[Topic], [1, 2])], id="too few columns"),
        pytest.param([pg.begin(1), pg.insert(OIDS[Topic], pg.values_of(TOPIC)) + b"x"], id="too long"),
        pytest.param([pg.begin(1), pg.insert(OIDS[Topic], pg.values_of(TOPIC))[:-3]], id="too short"),
        pytest.param([pg.begin(1), pg.insert(OIDS[Topic], pg.values_of(TOPIC, {"name": b"\xff"}))], id="not UTF-8"),
        pytest.param([pg.data(b"?")], id="an unknown kind"),
        pytest.param([pg.data(b"")], id="nothing"),
        pytest.param([b""], id="not even a header"),
        pytest.param([pg.data(b"R123")], id="half a relation"),
    ],
)
def test_malformed_pgoutput_is_a_decode_error(messages: list[bytes]) -> None:
    into = decoder()
    feed(RELATIONS, into)
    with pytest.raises(DecodeError):
        feed(messages, into)


FEW = (Topic, TableFile)  # between them they have every type of column; compiling decoders takes most of the time
FEW_RELATIONS = [pg.relation(OIDS[kind], kind.table, pg.columns_of(kind)) for kind in FEW]


def real_messages() -> list[bytes]:
    inserts = [pg.insert(OIDS[type(row)], pg.values_of(row)) for row in extreme_rows() if type(row) in FEW]
    changes = [pg.update(OIDS[Topic], pg.values_of(TOPIC), pg.values_of(TOPIC, {"config": pg.Unchanged()}))]
    changes += [pg.delete(OIDS[Topic], pg.values_of(TOPIC)), pg.truncate(OIDS[Topic])]
    return [*FEW_RELATIONS, pg.begin(1), *inserts, *changes, pg.commit()]


REAL = real_messages()


def survives(messages: list[bytes]) -> None:
    into = decoder(limits=TransactionLimits(events=50))
    for message in messages:
        try:
            into.feed(message)
        except AsthaError:
            into = decoder()
            feed(FEW_RELATIONS, into)


@given(st.lists(st.one_of(st.binary(max_size=200), st.sampled_from(REAL)), max_size=20))
@settings(max_examples=60, deadline=None)  # tests/fuzz runs more
def test_random_bytes_raise_a_decode_error_or_nothing(messages: list[bytes]) -> None:
    survives([*FEW_RELATIONS, *messages])


@st.composite
def mutated(draw: Any) -> bytes:
    message = bytearray(draw(st.sampled_from(REAL)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(25, max(len(message) - 1, 25)))
        match draw(st.integers(0, 3)):
            case 0 if place < len(message):
                message[place] = draw(st.integers(0, 255))
            case 1:
                del message[place : place + draw(st.integers(1, 9))]
            case 2:
                message[place:place] = draw(st.binary(min_size=1, max_size=9))
            case _ if place + 4 <= len(message):
                message[place : place + 4] = draw(st.sampled_from([b"\xff" * 4, b"\0\0\0\0", b"\x7f\xff\xff\xff"]))
    return bytes(message)


@given(st.lists(mutated(), min_size=1, max_size=8))
@settings(max_examples=80, deadline=None)  # tests/fuzz runs more
def test_mutated_messages_raise_a_decode_error_or_return_a_result(messages: list[bytes]) -> None:
    survives([*FEW_RELATIONS, pg.begin(1), *messages, pg.commit()])
