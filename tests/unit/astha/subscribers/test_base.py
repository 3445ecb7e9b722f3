"""Typed handlers: dispatched at run time, checked by mypy before."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

from astha.events import Commit, Event, Operation
from astha.subscribers import Component, handles
from registry.models import ConsumerGroup, Row, Topic
from registry.position import Position
from tests.doubles.registry import group, topic

_COMMIT = Commit(1, Position(1), 0, 1)


def event(row: Row) -> Event[Row]:
    return Event(Operation.INSERT, row, None, _COMMIT, 0)


class Both(Component):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    @handles(Topic)
    async def topic(self, event: Event[Topic]) -> None:
        self.seen.append(f"topic {event.data.name}")

    @handles(ConsumerGroup)
    async def group(self, event: Event[ConsumerGroup]) -> None:
        self.seen.append(f"group {event.data.group_id}")


async def test_each_kind_of_row_goes_to_its_handler() -> None:
    component = Both()
    assert component.subscribed_tables == {"topics", "consumer_groups"}
    for row in (topic("a"), group("b")):
        await component.on_event(event(row))
    assert component.seen == ["topic a", "group b"]
    assert await component.on_health() is True


async def test_a_subclass_may_override_and_add() -> None:
    class Louder(Both):
        async def topic(self, event: Event[Topic]) -> None:
            self.seen.append(f"TOPIC {event.data.name}")

    component = Louder()
    await component.on_event(event(topic("a")))
    assert component.seen == ["TOPIC a"]


def test_two_handlers_for_one_kind_are_refused() -> None:
    with pytest.raises(TypeError, match="two handlers for topics: one and two"):

        class Twice(Component):
            @handles(Topic)
            async def one(self, event: Event[Topic]) -> None: ...

            @handles(Topic)
            async def two(self, event: Event[Topic]) -> None: ...


_SNIPPET = """
from astha.events import Event
from astha.subscribers import Component, Subscriber, handles
from registry.models import Segment, TableFile


class Indexer(Component):
    @handles(Segment)
    async def segment(self, event: Event[{row}]) -> None:
        print(event.data.{field})


subscriber: Subscriber = Indexer()
"""


def check(tmp_path: Path, *, row: str, field: str) -> str:
    path = tmp_path / "snippet.py"
    path.write_text(_SNIPPET.format(row=row, field=field))
    report, errors, _ = api.run(["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), str(path)])
    assert errors == ""
    return report


@pytest.mark.slow
def test_mypy_refuses_a_handler_of_the_wrong_row(tmp_path: Path) -> None:
    assert check(tmp_path, row="Segment", field="base_offset") == ""
    assert "has incompatible type" in check(tmp_path, row="TableFile", field="file_path")
    assert '"Segment" has no attribute "file_path"' in check(tmp_path, row="Segment", field="file_path")


def test_a_handler_that_is_not_asynchronous_is_refused() -> None:
    def topic(self: object, event: Event[Topic]) -> None: ...

    with pytest.raises(TypeError, match="topic handles topics: declare it `async def`"):
        handles(Topic)(topic)  # type: ignore[arg-type]
