"""The files that `astha component new` writes: a test compares them with docs/how-to/write-a-component.md."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

_IN_MEMORY = '''"""$title: bytes per topic, kept in memory."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Field

from astha.subscribers import Component, ComponentContext, ConsistentRead, Event, Metric, Segment, handles


class Settings(BaseModel, extra="forbid"):
    min_bytes: int = Field(0, ge=0, description="Smaller topics have no metric.")


class $class_name(Component):
    durable = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sizes = Counter[str]()

    @handles(Segment)
    async def segment(self, event: Event[Segment]) -> None:
        if event.before is not None:
            self.sizes[event.before.topic] -= event.before.size_bytes
        if event.after is not None:
            self.sizes[event.after.topic] += event.after.size_bytes

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        sizes = Counter[str]()
        async for page in snapshot.rows(Segment):
            for segment in page:
                sizes[segment.topic] += segment.size_bytes
        self.sizes = sizes

    def metrics(self) -> Iterator[Metric]:
        for topic, size in self.sizes.items():
            if size >= self.settings.min_bytes:
                yield Metric("topic_bytes", "Bytes of a topic's segments.", size, {"topic": topic})


def create(settings: Mapping[str, Any], context: ComponentContext) -> $class_name:
    return $class_name(Settings.model_validate(dict(settings)))
'''

_IN_MEMORY_TEST = """import pytest

from astha.subscribers import Segment
from astha.testing import FakeRegistry, Fault, FaultInjector, async_test, deliver, make_context, make_row

from . import create


@async_test
async def test_a_refresh_repairs_what_a_failed_delivery_missed() -> None:
    registry, component = FakeRegistry(), create({}, make_context())
    await deliver(component, registry.commit(make_row(Segment, id=1, topic="clicks", size_bytes=100)))
    assert component.sizes == {"clicks": 100}
    faulty = FaultInjector(component)
    faulty.misbehave(Fault.FAIL, times=1)
    with pytest.raises(RuntimeError):
        await deliver(faulty, registry.commit(make_row(Segment, id=2, topic="clicks", size_bytes=20)))
    await faulty.on_refresh(registry.snapshot())
    assert component.sizes == {"clicks": 120}
"""

_DURABLE = '''"""$title: records per topic, in a SQLite file. Each transaction has its effect exactly once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from astha.subscribers import Component, ComponentContext, ConsistentRead, Event, Metric, Row, Segment, SqliteState

_TOTALS = "CREATE TABLE totals (topic TEXT PRIMARY KEY, records INTEGER NOT NULL)"
_ADD = "INSERT INTO totals VALUES (?, ?) ON CONFLICT (topic) DO UPDATE SET records = records + excluded.records"


class Settings(BaseModel, extra="forbid"):
    path: str = Field(description="The SQLite file.")


class $class_name(Component):
    durable = True
    tables = (Segment,)

    def __init__(self, settings: Settings) -> None:
        self.state = SqliteState(settings.path, _TOTALS)

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        with self.state.transaction(events[0].position) as database:
            if database is None:
                return  # delivered again
            for event in events:
                for row, sign in ((event.before, -1), (event.after, 1)):
                    if isinstance(row, Segment):
                        database.execute(_ADD, (row.topic, sign * row.record_count))

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        with self.state.rebuild() as database:
            async for page in snapshot.rows(Segment):
                database.executemany(_ADD, [(segment.topic, segment.record_count) for segment in page])

    async def on_health(self) -> bool:
        return self.state.is_writable()

    def metrics(self) -> Iterator[Metric]:
        yield Metric("duplicates", "Transactions that were delivered again.", self.state.duplicates, kind="counter")


def create(settings: Mapping[str, Any], context: ComponentContext) -> $class_name:
    return $class_name(Settings.model_validate(dict(settings)))
'''

_DURABLE_TEST = """from pathlib import Path

import pytest

from astha.subscribers import Segment
from astha.testing import FakeRegistry, Fault, FaultInjector, async_test, deliver, make_context, make_row

from . import create


@async_test
async def test_a_transaction_that_is_delivered_again_has_no_second_effect(tmp_path: Path) -> None:
    registry, settings = FakeRegistry(), {"path": str(tmp_path / "totals.db")}
    faulty = FaultInjector(create(settings, make_context()))
    await faulty.on_refresh(registry.snapshot())
    faulty.misbehave(Fault.FAIL_AFTER_EFFECT, times=1)
    transaction = registry.commit(make_row(Segment, id=1, topic="clicks", record_count=3))
    with pytest.raises(RuntimeError):
        await deliver(faulty, transaction)
    restarted = create(settings, make_context())
    await deliver(restarted, transaction)
    assert (restarted.state.query("SELECT * FROM totals"), restarted.state.duplicates) == ([("clicks", 3)], 1)
"""

_SUBSCRIPTION = """components:
  $name:
    use: $name:create
    tables: [segments]
    settings: $settings
"""


def skeleton(name: str, *, durable: bool) -> Mapping[str, str]:
    """Returns the text of each file of a new component, by its name inside the component's directory."""
    templates = {
        "__init__.py": _DURABLE if durable else _IN_MEMORY,
        f"test_{name}.py": _DURABLE_TEST if durable else _IN_MEMORY_TEST,
        "subscriptions.yaml": _SUBSCRIPTION,
    }
    words = name.split("_")
    values = {
        "name": name,
        "class_name": "".join(word.capitalize() for word in words),
        "title": " ".join(words).strip().capitalize(),
        "settings": f"{{path: {name}.db}}" if durable else "{min_bytes: 1}",
    }
    return {file: Template(text).substitute(values) for file, text in templates.items()}
