"""`Component`: typed handlers, transactions and batches; a class that contradicts itself is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from mypy import api

from astha.subscribers import Commit, Component, ConsumerGroup, Event, Operation, Position, Row, Topic, handles
from astha.subscribers.base import require_complete
from registry.models import LedgerEntry
from tests.doubles.registry import group, topic

_COMMIT = Commit(1, Position(1), 0, 1)


def event(row: Row) -> Event[Row]:
    return Event(Operation.INSERT, row, None, _COMMIT, 0)


class Both(Component):
    durable = False

    def __init__(self) -> None:
        self.seen: list[str] = []

    @handles(Topic)
    async def topic(self, event: Event[Topic]) -> None:
        self.seen.append(f"topic {event.data.name}")

    @handles(ConsumerGroup)
    async def group(self, event: Event[ConsumerGroup]) -> None:
        self.seen.append(f"group {event.data.group_id}")


async def test_each_row_type_goes_to_its_handler() -> None:
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


async def test_handlers_of_several_bases_are_joined() -> None:
    class Topics(Component):
        @handles(Topic)
        async def topic(self, event: Event[Topic]) -> None: ...

    class Groups(Component):
        seen = 0

        @handles(ConsumerGroup)
        async def group(self, event: Event[ConsumerGroup]) -> None:
            self.seen += 1

    class Joined(Topics, Groups): ...

    component = Joined()
    assert component.subscribed_tables == {"topics", "consumer_groups"}
    await component.on_event(event(group("b")))
    assert component.seen == 1


class Whole(Component):
    tables = (Topic, ConsumerGroup)
    durable = True

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None: ...


def test_tables_are_declared_by_one_attribute() -> None:
    assert Whole().subscribed_tables == {"topics", "consumer_groups"}
    require_complete(Whole())
    require_complete(Both())


def test_handlers_may_be_named_like_callbacks() -> None:
    class Named(Component):
        durable = False

        @handles(Topic)
        async def on_topic(self, event: Event[Topic]) -> None: ...

    require_complete(Named())
    assert Named().subscribed_tables == {"topics"}


async def nothing(*arguments: object) -> None: ...


@handles(Topic)
async def handler(self: object, event: Event[Topic]) -> None: ...


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"on_events": nothing}, "Subject has a method `on_events`, which the daemon never calls.* `on_event`"),
        ({"on_refersh": nothing}, "`on_refersh`, .* did you mean `on_refresh`"),
        ({"on_batch": staticmethod(nothing)}, "method `on_batch`, which the daemon never calls"),
        ({"on_heath": classmethod(nothing)}, "`on_heath`, .* did you mean `on_health`"),
        ({"on_event": nothing, "on_transaction": nothing}, "has on_event and on_transaction: .* keep one"),
        ({"on_transaction": nothing, "on_transactions": nothing}, "on_transaction and on_transactions"),
        ({"topic": handler, "on_transaction": nothing}, "has @handles methods and on_transaction"),
        ({"topic": handler, "tables": (Topic,)}, "declares its tables twice"),
        ({"tables": Topic}, r"tables is not a tuple of row types: write `tables = \(Segment, Topic\)`"),
        ({"tables": ("topics",)}, "subscribes to 'topics', which is not a published row type"),
        ({"tables": (LedgerEntry,)}, "subscribes to <class .*LedgerEntry'>, which is not a published row type"),
    ],
)
def test_a_class_that_contradicts_itself_is_refused(members: dict[str, object], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        type("Subject", (Component,), members)


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"tables": (Topic,), "on_event": nothing}, "does not say whether its state outlives the process"),
        ({"durable": True, "on_event": nothing}, "subscribes to no table"),
        ({"durable": True, "tables": (Topic,)}, "takes no events: write handlers, or one of on_event, on_transaction"),
    ],
)
def test_an_incomplete_component_is_refused_at_load(members: dict[str, object], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        require_complete(type("Subject", (Component,), members)())


def test_two_handlers_for_one_row_type_are_refused() -> None:
    with pytest.raises(TypeError, match="two handlers for topics: one and two"):

        class Twice(Component):
            @handles(Topic)
            async def one(self, event: Event[Topic]) -> None: ...

            @handles(Topic)
            async def two(self, event: Event[Topic]) -> None: ...


_SNIPPET = """
from collections.abc import Sequence
from astha.subscribers import BatchSubscriber, Component, ConsistentRead, Event, Row, Subscriber, handles
from astha.subscribers import Segment, TableFile


class Indexer(Component):
    @handles(Segment)
    async def segment(self, event: Event[{row}]) -> None:
        print(event.data.{field})


class Bare:
    subscribed_tables = frozenset({{"segments"}})
    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None: ...
    async def on_health(self) -> bool:
        return True
    async def on_refresh(self, snapshot: ConsistentRead) -> None: ...


subscribers: list[Subscriber] = [Indexer(), Bare()]
batches: BatchSubscriber = Bare()
"""


def check(tmp_path: Path, *, row: str, field: str) -> str:
    path = tmp_path / f"snippet_{row}_{field}.py"  # a name of its own: mypy compares size and time before content
    path.write_text(_SNIPPET.format(row=row, field=field))
    report, errors, _ = api.run(["--strict", "--no-error-summary", str(path)])  # with the cache of `make lint`
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
