"""The recipe of docs/parts/fanout.md, "Repetitions": a reader that follows it ends with the registry's rows and sees no
row go back in time, whatever crashes, late records of former leaders and new histories there were.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from astha.events import Commit, Event, Operation
from components.lib.change_formats import FormatSettings, Message, Origin, key_of, open_format
from registry.json_text import JsonText
from registry.models import Row, Topic
from registry.position import Position

KEYS = ("a", "b", "c")


class Record(NamedTuple):
    """A record of one partition. The sink's headers have the place; a record of a refresh has no number (index)."""

    key: bytes
    value: bytes | None
    epoch: int
    position: int
    number: int | None


class Reader:
    """Applies records by the four rules. Keeps the version of each row, and its place."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.places: dict[str, tuple[int, int]] = {}
        self.highest_epoch = 0

    def take(self, record: Record) -> None:
        if record.epoch < self.highest_epoch:
            return
        self.highest_epoch = record.epoch
        key = json.loads(record.key)["name"]
        place = (record.position, -1 if record.number is None else record.number)
        if record.number is not None and key in self.places and place <= self.places[key]:
            return
        value = None if record.value is None else json.loads(record.value)
        if value is None or value["operation"] == "DELETE":
            self.rows.pop(key, None)
            self.places.pop(key, None)
            return
        version = value["data"]["updated_at"]
        assert record.number is None or key not in self.rows or version > self.rows[key], "the row went back in time"
        self.rows[key], self.places[key] = version, place


class World:
    """A registry, its leader's sink with layout `tables`, the partition that it writes, and former leaders."""

    def __init__(self) -> None:
        self.rows: dict[str, Topic] = {}
        self.log: list[Event[Row]] = []  # of this history
        self.partition: list[Record] = []
        self.late: list[Record] = []  # what former leaders have in flight, in order
        self.start = Position(100)  # of this history
        self.position, self.epoch, self.version, self.transaction = 100, 1, 0, 0
        self.sent = self.acknowledged = 0  # events of the log
        self._format = open_format(FormatSettings(format="json"), "kafka")

    def commit(self, changes: list[tuple[str, bool]]) -> None:
        self.position += 1 + self.version % 3
        self.transaction += 1
        commit = Commit(self.transaction, Position(self.position), 0, len(changes))
        for index, (key, delete) in enumerate(changes):
            self.log.append(self._change(key, delete, commit, index))

    def send(self, events: int) -> None:
        for event in self.log[self.sent : self.sent + events]:
            self.partition += self._records(event)
        self.sent = min(self.sent + events, len(self.log))

    def acknowledge(self) -> None:
        """The ledger takes whole commits."""
        done = self.sent
        while 0 < done < len(self.log) and self.log[done].commit is self.log[done - 1].commit:
            done -= 1
        self.acknowledged = done

    def lose_leader(self, in_flight: int) -> None:
        """The successor continues from the acknowledged position. Records of the former leader may still arrive."""
        for event in self.log[self.sent : self.sent + in_flight]:
            self.late += self._records(event)
        self.epoch += 1
        self.sent = self.acknowledged

    def arrive_late(self, records: int) -> None:
        self.partition += self.late[:records]
        del self.late[:records]

    def refresh(self) -> None:
        """Rows of a snapshot, and tombstones of keys that readers may have and the snapshot has not. Whatever former
        leaders had in flight has arrived before: the recipe presumes it.
        """
        self.arrive_late(len(self.late))
        position = self.log[self.sent - 1].position if self.sent else self.start
        origin = self._origin()
        for row in self.rows.values():
            message = self._format.snapshot_row(row, position, origin, 0, last=False)
            self._append(message, position)
        for key in sorted(self._live_keys() - {key_of(row) for row in self.rows.values()}):
            self._append(self._format.tombstone(key), position)
        self.sent = self.acknowledged = len(self.log)

    def restore_backup(self, kept: frozenset[str]) -> None:
        """Another history, whose positions begin again: the sink refreshes before it sends changes of it."""
        self.rows = {key: row for key, row in self.rows.items() if key in kept}
        self.start, self.position, self.log, self.sent, self.acknowledged = Position(1), 1, [], 0, 0
        self.refresh()

    def _live_keys(self) -> set[bytes]:
        """Returns the keys that a reader may have a row for, if it follows the rules, or if it takes every record. The
        former may be ahead of a successor that repeats records.
        """
        reader = Reader()
        for record in self.partition:
            reader.take(record)
        last = {record.key: record.value for record in self.partition}
        kept = {key_of(self._topic(name)) for name in reader.rows}
        return kept | {key for key, value in last.items() if value is not None}

    def _change(self, key: str, delete: bool, commit: Commit, index: int) -> Event[Row]:
        before = self.rows.get(key)
        if delete and before is not None:
            del self.rows[key]
            return Event(Operation.DELETE, before, before, commit, index)
        self.version += 1
        row = self.rows[key] = self._topic(key)
        return Event(Operation.INSERT if before is None else Operation.UPDATE, row, before, commit, index)

    def _topic(self, name: str) -> Topic:
        return Topic(name, 1, None, JsonText("{}"), 0, self.version)

    def _records(self, event: Event[Row]) -> list[Record]:
        message = self._format.change(event, self._origin(), 0)
        key = message.key or b""
        record = Record(key, message.value, self.epoch, event.position, event.index)
        deleted = event.operation is Operation.DELETE
        return [record, record._replace(value=None)] if deleted else [record]

    def _append(self, message: Message, position: int) -> None:
        self.partition.append(Record(message.key or b"", message.value, self.epoch, position, None))

    def _origin(self) -> Origin:
        return Origin("registry", "astha", self.epoch, "sqlite")


Step = tuple[str, object]  # a method of World, and its argument
changes = st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=3)
often: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("commit"), changes),
    st.tuples(st.just("send"), st.integers(1, 4)),
    st.tuples(st.just("acknowledge"), st.none()),
    st.tuples(st.just("lose_leader"), st.integers(0, 3)),
    st.tuples(st.just("arrive_late"), st.integers(1, 3)),
)
rarely: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("refresh"), st.none()),
    st.tuples(st.just("restore_backup"), st.frozensets(st.sampled_from(KEYS))),
)
programs = st.lists(st.tuples(st.lists(often, max_size=12), rarely), max_size=2)


@settings(max_examples=400)
@given(programs, st.lists(often, max_size=12))
def test_a_reader_ends_with_the_rows_of_the_registry(parts: list[tuple[list[Step], Step]], rest: list[Step]) -> None:
    world = World()
    for name, argument in [*(step for steps, last in parts for step in (*steps, last)), *rest]:
        method = getattr(world, name)
        method() if argument is None else method(argument)
    world.send(len(world.log))
    world.arrive_late(len(world.late))  # the latest possible: after everything
    reader = Reader()
    for record in world.partition:
        reader.take(record)
    assert reader.rows == {key: row.updated_at for key, row in world.rows.items()}
