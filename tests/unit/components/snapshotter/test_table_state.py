from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from astha.events import Operation
from components.snapshotter.policy import Policy
from components.snapshotter.table_state import Book, Books
from tests.doubles.clock import ManualClock
from tests.unit.components.snapshotter.rows import event, metadata, snapshot, table_file

RETRY_MS = 60_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def book_of(books: Books) -> Book:
    found = books.of(1)
    assert found is not None
    return found


def opened(**properties: str) -> Books:
    books = Books(Policy())
    books.apply(event(metadata(1, **properties)))
    return books


def trigger(books: Books, clock: ManualClock) -> str | None:
    due = book_of(books).due(clock.now_ms(), RETRY_MS)
    return None if due is None else due[0]


@pytest.mark.parametrize(("limit", "value"), [("after_rows", "30"), ("after_bytes", "300"), ("after_files", "3")])
def test_by_size(clock: ManualClock, limit: str, value: str) -> None:
    books = opened(**{limit: value})
    for number in range(2):
        books.apply(event(table_file(number)))
        assert trigger(books, clock) is None
    books.apply(event(table_file(7, operation="compaction")))
    books.apply(event(table_file(8), Operation.DELETE))
    assert trigger(books, clock) is None, "neither a compaction nor a removal brings rows"
    books.apply(event(table_file(9)))
    assert trigger(books, clock) == "size"


def test_by_time_and_only_if_something_has_changed(clock: ManualClock) -> None:
    books = opened(every="1h")
    clock.advance(timedelta(days=1))
    assert trigger(books, clock) is None, "nothing in it"
    books.apply(event(table_file()))
    assert trigger(books, clock) == "time"
    books.apply(event(snapshot(1, "requested", clock.now_ms())))
    books.apply(event(snapshot(1, "created", clock.now_ms()), Operation.UPDATE))
    clock.advance(timedelta(hours=2))
    assert trigger(books, clock) is None, "nothing new"
    books.apply(event(table_file(), Operation.DELETE))
    assert trigger(books, clock) == "time", "a removal is a change"
    books.apply(event(snapshot(2, "requested", clock.now_ms())))
    books.apply(event(snapshot(2, "created", clock.now_ms()), Operation.UPDATE))
    books.apply(event(table_file(2)))
    clock.advance(timedelta(minutes=59))
    assert trigger(books, clock) is None
    clock.advance(timedelta(minutes=1))
    assert trigger(books, clock) == "time"


def test_one_at_a_time(clock: ManualClock) -> None:
    books = opened(after_files="1")
    books.apply(event(table_file(1)))
    book_of(books).asking = True
    assert trigger(books, clock) is None
    books.apply(event(snapshot(1, "requested")))
    books.apply(event(table_file(2)))
    assert trigger(books, clock) is None
    books.apply(event(snapshot(1, "created"), Operation.UPDATE))
    assert trigger(books, clock) == "size", "what came after the request counts for the next one"


def test_a_failure_gives_back_what_it_had_taken_and_waits(clock: ManualClock) -> None:
    books = opened(after_rows="10")
    books.apply(event(table_file(1)))
    books.apply(event(snapshot(1, "requested", clock.now_ms())))
    books.apply(event(snapshot(1, "failed", clock.now_ms()), Operation.UPDATE))
    assert trigger(books, clock) is None
    clock.advance(RETRY_MS)
    assert trigger(books, clock) == "size"


def test_settings_follow_the_newest_version_and_a_bad_one_costs_only_itself(clock: ManualClock) -> None:
    books = opened()
    books.apply(event(table_file()))
    assert trigger(books, clock) is None
    books.apply(event(metadata(2, after_files="1")))
    assert trigger(books, clock) == "size"
    books.apply(event(metadata(1), Operation.UPDATE))
    assert trigger(books, clock) == "size", "an older version says nothing"
    books.apply(event(metadata(2, after_files="few"), Operation.UPDATE))
    assert trigger(books, clock) is None
    books.apply(event(metadata(2), Operation.DELETE))
    assert books.of(1) is None
    books.apply(event(table_file()))
    books.apply(event(snapshot(1)))


def test_expired_rows_are_known_until_they_are_released() -> None:
    books = opened()
    row = snapshot(1, "created")
    books.apply(event(row))
    books.apply(event(msgspec.structs.replace(row, status="expired"), Operation.UPDATE))
    assert list(book_of(books).rows) == [1]
    books.apply(event(msgspec.structs.replace(row, status="expired", manifest_list=None), Operation.UPDATE))
    assert book_of(books).rows == {}
