"""A component whose effect is durable: a SQLite file with its rows, and with every promise it saw broken.

What it has applied is kept with the rows, in the same transaction, so repetitions are recognised and everything else is
checked strictly, over any number of processes: an event's row before must be the row that it has, a call must not go
back, pairs of rows that are always written together must always agree.
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


def spelled(row: Row) -> tuple[str, str]:
    """Key and whole row, for comparing."""
    return repr(tuple(getattr(row, name) for name in row.key)), repr(msgspec.structs.astuple(row))


class Mood:
    """Whether the next call goes well. A file named ``calm`` in the directory ends all trouble."""

    def __init__(self, seed: str, directory: Path, trouble: float) -> None:
        self._random = random.Random(seed)
        self._calm = directory / "calm"
        self._trouble = trouble

    async def before(self) -> None:
        chance = self._random.random() / self._trouble if self._trouble and not self._calm.exists() else 1.0
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
        if self._random.random() < self._trouble / 3 and not self._calm.exists():
            raise RuntimeError("failed after the effect")


class Diary:
    def __init__(self, path: Path, tables: frozenset[str], mood: Mood, *, whole: bool) -> None:
        _make_tables(path)
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.execute("PRAGMA synchronous = OFF")
        self._tables = tables
        self._mood = mood
        self._latest = (0, -1)  # call, in this process
        self._inside = 0
        if whole:
            self.on_transaction = self._on_transaction

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return self._tables

    async def start(self) -> None:
        """Another term: it begins again where the ledger says."""
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
            await self._mood.before()
            rows = []
            for table in sorted(self._tables):
                async for page in snapshot.rows(KINDS[table]):
                    rows += [(table, *spelled(row)) for row in page]
            with self._writing():
                self._database.execute("DELETE FROM held")
                self._database.executemany("INSERT INTO held VALUES (?, ?, ?)", rows)
                self._database.execute("UPDATE reached SET position = 0, place = -1")
                self._count("refreshes")
                self._count(f"calls by {os.getpid()}")
                self._check_pairs("after a refresh")
            await self._mood.after()
        finally:
            self._inside -= 1

    async def _call(self, events: Sequence[Event[Row]]) -> None:
        self._enter()
        try:
            place = (int(events[0].position), events[0].index)
            if place < self._latest:
                self._complain(f"went back from {self._latest} to {place}")
            self._latest = place
            await self._mood.before()
            with self._writing():
                self._count(f"calls by {os.getpid()}")
                self._apply(events)
            await self._mood.after()
        finally:
            self._inside -= 1

    def _enter(self) -> None:
        if self._inside:
            self._complain("two calls at once")
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
        expected = None if event.before is None else spelled(event.before)
        key = expected[0] if expected else spelled(event.data)[0]
        found = self._database.execute("SELECT row FROM held WHERE name = ? AND key = ?", (table, key)).fetchone()
        if (found[0] if found else None) != (expected[1] if expected else None):
            self._complain(
                f"{event.operation} of {table} at {event.position}[{event.index}], transaction {event.transaction}: "
                f"before {expected}, but here it is {found}"
            )
        self._database.execute("DELETE FROM held WHERE name = ? AND key = ?", (table, key))
        if event.operation is not Operation.DELETE:
            self._database.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?)", (table, *spelled(event.data)))

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
                self._complain(f"half a transaction {when}: {name} is {rows}")

    def _writing(self) -> sqlite3.Connection:
        self._database.execute("BEGIN IMMEDIATE")
        return self._database

    def _count(self, what: str) -> None:
        self._database.execute(
            "INSERT INTO counts VALUES (?, 1) ON CONFLICT (what) DO UPDATE SET number = number + 1", (what,)
        )

    def _complain(self, what: str) -> None:
        self._database.execute("INSERT INTO violations VALUES (?)", (f"process {os.getpid()}: {what}",))


def _make_tables(path: Path) -> None:
    """Before the file has its name: whoever finds one, reader or second writer, finds it whole."""
    if path.exists():
        return
    nameless = path.with_name(f"{path.name}.{os.getpid()}")
    database = sqlite3.connect(nameless, isolation_level=None)
    database.executescript(f"PRAGMA journal_mode = WAL; {_SCHEMA}")
    database.close()
    with contextlib.suppress(FileExistsError):  # another process was quicker
        path.hardlink_to(nameless)
    nameless.unlink()


class Reading:
    """A diary, read by the test while its writer lives or is dead."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(self, query: str) -> list[tuple[str, ...]]:
        database = sqlite3.connect(f"{self._path.as_uri()}?mode=rw", timeout=30, uri=True)  # makes none
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
