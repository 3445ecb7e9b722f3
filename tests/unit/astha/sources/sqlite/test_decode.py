from __future__ import annotations

import json
from typing import ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astha.errors import ConfigError, DecodeError
from astha.events import Operation
from astha.sources.limits import TransactionLimits
from astha.sources.sqlite.decode import LogDecoder, LogRow, decode_images, image_decoder
from registry.json_text import JsonText
from registry.models import ConsumerGroup, Row, TableFile, Topic
from tests.fixtures.rows import extreme_rows

TABLES = frozenset({"consumer_groups", "topics"})
TOPIC = Topic("t", 1, None, JsonText('{"a":1}'), 2, 3)


def image(row: Row, **changed: object) -> str:
    """Like SQLite's json_object: JSON documents as text, booleans as numbers."""
    values = {**msgspec.structs.asdict(row), **changed}
    return json.dumps({name: int(value) if isinstance(value, bool) else value for name, value in values.items()})


def inserted(sequence: int, number: int | None) -> LogRow:
    group = ConsumerGroup(str(sequence), 0, 0)
    return sequence, number, sequence * 10, "consumer_groups", "INSERT", None, image(group)


def header(sequence: int, number: int | None, table: str = "agents") -> LogRow:
    return sequence, number, sequence * 10, table, "INSERT", None, None


def decoder(**limits: int) -> LogDecoder:
    return LogDecoder(TABLES, TransactionLimits(**limits))


def held(one: LogDecoder) -> list[Row]:
    return [event.data for event in one._events]


class TestImages:
    decode: ClassVar = staticmethod(image_decoder(Topic))

    def topic(self, operation: str, before: str | None, after: str | None) -> tuple[Operation, Row, Row | None, int]:
        return decode_images((5, 7, 1000, "topics", operation, before, after), self.decode)

    def test_each_operation(self) -> None:
        new = msgspec.structs.replace(TOPIC, retention_ms=5)
        size = len(image(TOPIC))
        assert self.topic("INSERT", None, image(TOPIC)) == (Operation.INSERT, TOPIC, None, size)
        assert self.topic("DELETE", image(TOPIC), None) == (Operation.DELETE, TOPIC, TOPIC, size)
        assert self.topic("UPDATE", image(TOPIC), image(new))[:3] == (Operation.UPDATE, new, TOPIC)

    @pytest.mark.parametrize("row", extreme_rows(), ids=lambda row: type(row).__name__)
    def test_every_model_comes_back_equal_and_of_the_same_types(self, row: Row) -> None:
        found = image_decoder(type(row))(image(row))
        assert found == row
        types = [[type(value) for value in msgspec.structs.astuple(each)] for each in (found, row)]
        assert types[0] == types[1]

    def test_unknown_columns_are_ignored(self) -> None:
        assert self.topic("INSERT", None, image(TOPIC, colour="blue"))[1] == TOPIC

    def test_a_missing_column_is_named(self) -> None:
        with pytest.raises(
            DecodeError, match=r"change 5, INSERT of topics: .*missing required field `partition_count`"
        ):
            self.topic("INSERT", None, '{"name": "t"}')

    @pytest.mark.parametrize(
        ("operation", "before", "after"),
        [
            ("INSERT", None, None),
            ("INSERT", image(TOPIC), image(TOPIC)),
            ("INSERT", image(TOPIC), None),
            ("UPDATE", None, image(TOPIC)),
            ("UPDATE", image(TOPIC), None),
            ("UPDATE", image(TOPIC), "{}"),
            ("DELETE", None, None),
            ("DELETE", image(TOPIC), image(TOPIC)),
            ("INSERT", None, image(TOPIC, partition_count=None)),
            ("INSERT", None, image(TOPIC, partition_count="many")),
            ("INSERT", None, image(TOPIC, config=5)),
            ("INSERT", None, image(TOPIC, config=None)),
            ("INSERT", None, "[]"),
            ("INSERT", None, "null"),
            ("INSERT", None, "not JSON"),
            ("INSERT", None, '{"name": "t"'),
            ("INSERT", None, image(TOPIC) + "}"),
            ("INSERT", None, ""),
            ("INSERT", None, "\ud800"),
        ],
    )
    def test_garbage_is_a_decode_error(self, operation: str, before: str | None, after: str | None) -> None:
        with pytest.raises(DecodeError, match="change 5"):
            self.topic(operation, before, after)

    def test_an_unknown_enum_value_is_an_error(self) -> None:
        file = next(row for row in extreme_rows() if isinstance(row, TableFile))
        row = (5, 7, 0, "table_files", "INSERT", None, image(file, operation="magic"))
        with pytest.raises(DecodeError, match="magic"):
            decode_images(row, image_decoder(TableFile))

    @given(
        operation=st.sampled_from(["INSERT", "UPDATE", "DELETE", "", "insert"]),
        before=st.none() | st.text() | st.just(image(TOPIC)),
        after=st.none() | st.text() | st.just(image(TOPIC)),
    )
    def test_garbage_raises_only_decode_errors(self, operation: str, before: str | None, after: str | None) -> None:
        try:
            _, data, _, _ = self.topic(operation, before, after)
        except DecodeError:
            return
        assert data == TOPIC


class TestTransactions:
    def test_one_ends_where_the_next_begins(self) -> None:
        one = decoder()
        assert one.feed([inserted(1, 7), inserted(2, 7)]) == []
        (done,) = one.feed([inserted(3, 8)])
        assert (done.commit.transaction, done.position, done.commit.committed_at) == (7, 2, 20_000)
        assert [event.index for event in done.events] == [0, 1]
        assert [event.last for event in done.events] == [False, True]
        assert all(event.commit is done.commit for event in done.events)
        assert one.reached == 2

    def test_the_end_of_the_log_ends_it_too(self) -> None:
        one = decoder()
        one.feed([inserted(1, 7)])
        (done,) = one.finish()
        assert done.position == one.reached == 1
        assert one.finish() == []

    def test_rows_without_a_number_that_are_found_together_are_one(self) -> None:
        one = decoder()
        done = one.feed([inserted(1, None), inserted(2, None), inserted(3, 7), inserted(4, None)])
        done += one.finish()
        assert [item.commit.transaction for item in done] == [-1, 7, -4]
        assert [len(item.events) for item in done] == [2, 1, 1]

    def test_a_transaction_may_arrive_in_parts(self) -> None:
        one = decoder()
        for sequence in range(1, 50):
            assert one.feed([inserted(sequence, None)]) == []
        (done,) = one.finish()
        assert len(done.events) == done.commit.count == 49

    def test_unsubscribed_tables_only_move_the_position(self) -> None:
        one = decoder()
        assert one.feed([header(1, 5), header(2, 6)]) == []
        assert one.reached == 1
        assert one.finish() == []
        assert one.reached == 2

    def test_the_position_counts_rows_of_unsubscribed_tables(self) -> None:
        one = decoder()
        one.feed([header(1, 5), inserted(2, 5), header(3, 5)])
        (done,) = one.finish()
        assert done.position == 3
        assert done.tables == {"consumer_groups"}
        assert [event.index for event in done.events] == [0]

    def test_a_row_that_can_not_be_decoded_makes_its_table_unlisted(self) -> None:
        one = decoder()
        one.feed([inserted(1, 5), header(2, 5, "topics"), inserted(3, 5)])
        (done,) = one.finish()
        assert done.unlisted == {"topics"}
        assert done.tables == TABLES
        assert [event.index for event in done.events] == [0, 1]
        assert "change 2, INSERT of topics" in (one.decode_error or "")

    def test_beyond_the_limits_no_events_are_kept(self) -> None:
        one = decoder(events=3)
        one.feed([inserted(sequence, 5) for sequence in range(1, 4)])
        assert len(held(one)) == 3
        one.feed([inserted(4, 5)])
        assert one.oversized
        assert one.continues(header(5, 5))
        assert not one.continues(header(5, 6))
        for sequence in range(5, 1_000):
            one.feed([inserted(sequence, 5)])
            assert held(one) == []
        one.feed([header(1_000, 5, "topics")])
        (done,) = one.feed([inserted(1_001, 6)])
        assert (done.events, done.commit.count, done.position) == ([], 0, 1_000)
        assert done.unlisted == TABLES
        assert one.decode_error is None
        (after,) = one.finish()
        assert len(after.events) == 1
        assert after.unlisted == frozenset()

    def test_bytes_are_limited_too(self) -> None:
        size = len(inserted(1, 5)[6] or "")
        one = decoder(size_bytes=size + 1)
        one.feed([inserted(1, 5)])
        assert len(held(one)) == 1
        one.feed([inserted(2, 5)])
        assert one.oversized

    def test_reset_discards_the_open_transaction(self) -> None:
        one = decoder()
        one.feed([inserted(1, 5)])
        one.reset()
        assert one.finish() == []
        one.feed([inserted(9, 5)])
        (done,) = one.finish()
        assert [event.data for event in done.events] == [ConsumerGroup("9", 0, 0)]

    def test_a_table_that_is_not_published_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="ledger"):
            LogDecoder(frozenset({"ledger", "topics"}), TransactionLimits())

    @given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), max_size=30), st.integers(1, 7))
    def test_however_the_log_is_cut_the_transactions_are_the_same(
        self, commits: list[tuple[int, bool, bool]], piece: int
    ) -> None:
        rows: list[LogRow] = []
        for number, (count, announced, wanted) in enumerate(commits, 1):
            make = inserted if wanted else header
            rows += [make(len(rows) + place, number if announced else None) for place in range(1, count + 1)]
        whole, cut = decoder(), decoder()
        expected = whole.feed(rows) + whole.finish()
        found = [done for start in range(0, len(rows), piece) for done in cut.feed(rows[start : start + piece])]
        assert found + cut.finish() == expected
        assert cut.reached == whole.reached
        assert [event.data for item in expected for event in item.events] == [
            ConsumerGroup(str(row[0]), 0, 0) for row in rows if row[3] == "consumer_groups"
        ]
