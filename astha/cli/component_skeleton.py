"""The files that `astha component new` writes. docs/writing-a-component.md shows them, and a test compares the two."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

_IN_MEMORY = '''"""$title: bytes per topic, kept in memory."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Field

from astha.subscribers import Component, ComponentContext, ConsistentRead, Event, Metric, Operation, Segment, handles


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
        if event.operation is not Operation.DELETE:
            self.sizes[event.data.topic] += event.data.size_bytes

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

_IN_MEMORY_TEST = """import asyncio

import pytest

from astha.subscribers import Segment
from astha.testing import FakeRegistry, Fault, FaultInjector, deliver, make_context, make_row

from . import create


def test_a_refresh_repairs_what_a_failed_delivery_missed() -> None:
    async def drill() -> None:
        registry, component = FakeRegistry(), create({}, make_context())
        await deliver(component, registry.commit(make_row(Segment, id=1, topic="clicks", size_bytes=100)))
        assert component.sizes == {"clicks": 100}
        faulty = FaultInjector(component)
        faulty.misbehave(Fault.FAIL, times=1)
        with pytest.raises(RuntimeError):
            await deliver(faulty, registry.commit(make_row(Segment, id=2, topic="clicks", size_bytes=20)))
        await faulty.on_refresh(registry.snapshot())
        assert component.sizes == {"clicks": 120}

    asyncio.run(drill())
"""

_DURABLE = '''"""$title: records per topic, in a SQLite file. Each transaction has its effect exactly once."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from pydantic import BaseModel, Field

from astha.subscribers import Component, ComponentContext, ConsistentRead, Event, Metric, Operation, Row, Segment

_SCHEMA = """
CREATE TABLE IF NOT EXISTS totals (topic TEXT PRIMARY KEY, records INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS progress (id INTEGER PRIMARY KEY CHECK (id = 1), position INTEGER NOT NULL);
INSERT OR IGNORE INTO progress VALUES (1, 0);
"""
_ADD = "INSERT INTO totals VALUES (?, ?) ON CONFLICT (topic) DO UPDATE SET records = records + excluded.records"


class Settings(BaseModel, extra="forbid"):
    path: str = Field(description="The SQLite file.")


class $class_name(Component):
    durable = True
    tables = (Segment,)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.duplicates = 0

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.settings.path)) as database, database:
            yield database

    async def start(self) -> None:
        with self.transaction() as database:
            database.executescript(_SCHEMA)

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        with self.transaction() as database:
            (position,) = database.execute("SELECT position FROM progress").fetchone()
            if events[0].position <= position:
                self.duplicates += 1
                return
            for event in events:
                added = None if event.operation is Operation.DELETE else event.data
                for row, sign in ((event.before, -1), (added, 1)):
                    if isinstance(row, Segment):
                        database.execute(_ADD, (row.topic, sign * row.record_count))
            database.execute("UPDATE progress SET position = ?", (events[0].position,))

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        totals = Counter[str]()
        async for page in snapshot.rows(Segment):
            for segment in page:
                totals[segment.topic] += segment.record_count
        with self.transaction() as database:
            database.execute("DELETE FROM totals")
            database.executemany(_ADD, totals.items())
            database.execute("UPDATE progress SET position = 0")

    async def on_health(self) -> bool:
        with self.transaction() as database:
            return bool(database.execute("SELECT 1").fetchone())

    def metrics(self) -> Iterator[Metric]:
        yield Metric("duplicates", "Transactions that were delivered again.", self.duplicates, kind="counter")

    def totals(self) -> dict[str, int]:
        with self.transaction() as database:
            return dict(database.execute("SELECT topic, records FROM totals"))


def create(settings: Mapping[str, Any], context: ComponentContext) -> $class_name:
    return $class_name(Settings.model_validate(dict(settings)))
'''

_DURABLE_TEST = """import asyncio
from pathlib import Path

import pytest

from astha.subscribers import Segment
from astha.testing import FakeRegistry, Fault, FaultInjector, deliver, make_context, make_row

from . import create


def test_a_transaction_that_is_delivered_again_has_no_second_effect(tmp_path: Path) -> None:
    async def drill() -> None:
        registry, settings = FakeRegistry(), {"path": str(tmp_path / "totals.db")}
        component = create(settings, make_context())
        await component.start()
        await component.on_refresh(registry.snapshot())
        faulty = FaultInjector(component)
        faulty.misbehave(Fault.FAIL_AFTER_EFFECT, times=1)
        transaction = registry.commit(make_row(Segment, id=1, topic="clicks", record_count=3))
        with pytest.raises(RuntimeError):
            await deliver(faulty, transaction)
        restarted = create(settings, make_context())
        await restarted.start()
        await deliver(restarted, transaction)
        assert restarted.totals() == {"clicks": 3}
        assert restarted.duplicates == 1

    asyncio.run(drill())
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
