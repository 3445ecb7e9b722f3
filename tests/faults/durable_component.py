"""A component with durable effect: a SQLite file with its rows, and with every violated guarantee it has seen.

The position is stored in the same transaction as the rows, so repetitions are recognised and everything else is checked
strictly, over any number of processes: an event's `before` must equal the stored row, positions must not go back, pairs
of rows that are always written together must always agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

from astha.errors import Reject, Retry
from astha.events import Event, Operation
from registry.contract import ConsistentRead
from registry.models import PUBLISHED, ConsumerGroup, Row

KINDS = {kind.table: kind for kind in PUBLISHED}
PAIR = "pair-"

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS held (name TEXT, key TEXT, row TEXT, PRIMARY KEY (name, key));
    CREATE TABLE IF NOT EXISTS reached (id INTEGER PRIMARY KEY CHECK (id = 1), position INTEGER, place INTEGER);
    INSERT OR IGNORE INTO reached VALUES (1, 0, -1);
    CREATE TABLE IF NOT EXISTS counts (what TEXT PRIMARY KEY, number INTEGER);
    CREATE TABLE IF NOT EXISTS violations (what TEXT);
"""


def comparable(row: Row) -> tuple[str, str]:
    """Returns key and whole row as text, for comparison."""
    return repr(tuple(getattr(row, name) for name in row.key)), repr(msgspec.structs.astuple(row))


class FaultInjector:
    """Makes calls fail at random. A file named ``calm`` in the directory ends that."""

    def __init__(self, seed: str, directory: Path, fault_rate: float) -> None:
        self._random = random.Random(seed)
        self._calm = directory / "calm"
        self._fault_rate = fault_rate

    async def before(self) -> None:
        chance = self._random.random() / self._fault_rate if self._fault_rate and not self._calm.exists() else 1.0
        if chance >= 1.0:
            return
        if chance < 0.05:
            raise Reject("never this one")
        if chance < 0.4:
            raise Retry("not now")
        if chance < 0.5:
            raise SystemExit(3)
        if chance < 0.6:
            await asyncio.sleep(3600)
        await asyncio.sleep(self._random.random() * 0.05)

    async def after(self) -> None:
        if self._random.random() < self._fault_rate / 3 and not self._calm.exists():
            raise RuntimeError("failed after the effect")


class DurableComponent:
    def __init__(self, path: Path, tables: frozenset[str], faults: FaultInjector, *, whole: bool) -> None:
        _make_tables(path)
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.execute("PRAGMA synchronous = OFF")
        self._tables = tables
        self._faults = faults
        self._latest = (0, -1)  # call, in this process
        self._inside = 0
        if whole:
            self.on_transaction = self._on_transaction

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return self._tables

    async def start(self) -> None:
        """Leadership was won again: delivery resumes where the ledger says."""
        self._latest = (0, -1)

    async def on_health(self) -> bool:
        return True

    async def on_event(self, event: Event[Row]) -> None:
        await self._call([event])

    async def _on_transaction(self, events: Sequence[Event[Row]]) -> None:
        await self._call(events)

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        self._enter()
        try:
            await self._faults.before()
            rows = []
            for table in sorted(self._tables):
                async for page in snapshot.rows(KINDS[table]):
                    rows += [(table, *comparable(row)) for row in page]
            with self._writing():
                self._database.execute("DELETE FROM held")
                self._database.executemany("INSERT INTO held VALUES (?, ?, ?)", rows)
                self._database.execute("UPDATE reached SET position = 0, place = -1")
                self._count("refreshes")
                self._count(f"calls by {os.getpid()}")
                self._check_pairs("after a refresh")
            await self._faults.after()
        finally:
            self._inside -= 1

    async def _call(self, events: Sequence[Event[Row]]) -> None:
        self._enter()
        try:
            place = (int(events[0].position), events[0].index)
            if place < self._latest:
                self._violation(f"went back from {self._latest} to {place}")
            self._latest = place
            await self._faults.before()
            with self._writing():
                self._count(f"calls by {os.getpid()}")
                self._apply(events)
            await self._faults.after()
        finally:
            self._inside -= 1

    def _enter(self) -> None:
        if self._inside:
            self._violation("two calls at once")
        self._inside += 1

    def _apply(self, events: Sequence[Event[Row]]) -> None:
        (reached,) = self._database.execute("SELECT position, place FROM reached").fetchall()
        if reached[0] and events[0].position > reached[0]:
            self._check_pairs(f"before the transaction at {events[0].position}")
        for event in events:
            if (event.position, event.index) <= reached:
                self._count("repetitions")
                continue
            self._apply_one(event)
            self._count("events")
        last = events[-1]
        if (last.position, last.index) > reached:
            self._database.execute("UPDATE reached SET position = ?, place = ?", (last.position, last.index))

    def _apply_one(self, event: Event[Row]) -> None:
        table = event.table
        expected = None if event.before is None else comparable(event.before)
        key = expected[0] if expected else comparable(event.data)[0]
        found = self._database.execute("SELECT row FROM held WHERE name = ? AND key = ?", (table, key)).fetchone()
        if (found[0] if found else None) != (expected[1] if expected else None):
            self._violation(
                f"{event.operation} of {table} at {event.position}[{event.index}], transaction {event.transaction}: "
                f"before {expected}, but here it is {found}"
            )
        self._database.execute("DELETE FROM held WHERE name = ? AND key = ?", (table, key))
        if event.operation is not Operation.DELETE:
            self._database.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?)", (table, *comparable(event.data)))

    def _check_pairs(self, when: str) -> None:
        held = self._database.execute(
            "SELECT key, row FROM held WHERE name = ? AND key LIKE ?", (ConsumerGroup.table, f"('{PAIR}%")
        )
        pairs: dict[str, list[str]] = {}
        for key, row in held:
            name = key.strip("(',)")
            pairs.setdefault(name[:-1], []).append(row.replace(name, name[:-1]))
        for name, rows in pairs.items():
            if len(rows) != 2 or rows[0] != rows[1]:
                self._violation(f"half a transaction {when}: {name} is {rows}")

    def _writing(self) -> sqlite3.Connection:
        self._database.execute("BEGIN IMMEDIATE")
        return self._database

    def _count(self, what: str) -> None:
        self._database.execute(
            "INSERT INTO counts VALUES (?, 1) ON CONFLICT (what) DO UPDATE SET number = number + 1", (what,)
        )

    def _violation(self, what: str) -> None:
        self._database.execute("INSERT INTO violations VALUES (?)", (f"process {os.getpid()}: {what}",))


def _make_tables(path: Path) -> None:
    """Creates the tables before the file has its name: a reader or second writer finds all of them or no file."""
    if path.exists():
        return
    unnamed = path.with_name(f"{path.name}.{os.getpid()}")
    database = sqlite3.connect(unnamed, isolation_level=None)
    database.executescript(f"PRAGMA journal_mode = WAL; {_SCHEMA}")
    database.close()
    with contextlib.suppress(FileExistsError):  # another process was first
        path.hardlink_to(unnamed)
    unnamed.unlink()


class RecordedState:
    """The file of a `DurableComponent`, read by the test."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(self, query: str) -> list[tuple[str, ...]]:
        database = sqlite3.connect(f"{self._path.as_uri()}?mode=rw", timeout=30, uri=True)  # creates none
        try:
            return database.execute(query).fetchall()
        finally:
            database.close()

    def rows(self) -> set[tuple[str, str, str]]:
        return {(name, key, row) for name, key, row in self.ask("SELECT name, key, row FROM held")}

    def violations(self) -> list[str]:
        return [what for (what,) in self.ask("SELECT what FROM violations")]

    def counts(self) -> dict[str, int]:
        return {what: int(number) for what, number in self.ask("SELECT what, number FROM counts")}
