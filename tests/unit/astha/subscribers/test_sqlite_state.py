from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from astha.subscribers import Position, SqliteState

TABLE = "CREATE TABLE sums (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, value INTEGER)"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state.db")


@pytest.fixture
def state(path: str) -> SqliteState:
    state = SqliteState(path, TABLE)
    with state.rebuild() as database:
        database.execute("INSERT INTO sums (name, value) VALUES ('a', 1)")
    return state


def add(state: SqliteState, position: int, value: int) -> bool:
    """Returns whether it had an effect."""
    with state.transaction(Position(position)) as database:
        if database is not None:
            database.execute("UPDATE sums SET value = value + ?", (value,))
        return database is not None


def test_a_transaction_has_its_effect_once_in_any_process(state: SqliteState, path: str) -> None:
    assert add(state, 5, 10)
    assert not add(state, 5, 10)
    restarted = SqliteState(path, TABLE)
    assert not add(restarted, 5, 10)
    assert not add(restarted, 4, 10), "delivered again from an older position"
    assert add(restarted, 6, 100)
    assert restarted.query("SELECT value FROM sums WHERE name = ?", "a") == [(111,)]
    assert (state.duplicates, restarted.duplicates) == (1, 2)


def test_an_effect_that_fails_is_rolled_back_with_its_position(state: SqliteState) -> None:
    def fail() -> None:
        with state.transaction(Position(5)) as database:
            assert database is not None
            database.execute("UPDATE sums SET value = 0")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert state.query("SELECT value FROM sums") == [(1,)]
    assert add(state, 5, 10)


def test_a_rebuild_that_fails_changes_nothing(state: SqliteState) -> None:
    add(state, 5, 10)

    def fail() -> None:
        with state.rebuild() as database:
            assert database.execute("SELECT count(*) FROM sums").fetchone() == (0,), "new tables"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert state.query("SELECT value FROM sums") == [(11,)]
    assert not add(state, 5, 10)


def test_a_rebuild_forgets_the_position_and_other_tables(state: SqliteState, path: str) -> None:
    add(state, 5, 10)
    with SqliteState(path, "CREATE TABLE counts (n INTEGER)").rebuild():
        pass
    names = {name for (name,) in state.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {"counts", "astha_progress", "sqlite_sequence"}
    with SqliteState(path, TABLE).rebuild() as database:
        database.execute("INSERT INTO sums (name, value) VALUES ('a', 1)")
    assert add(state, 1, 2), "a replaced registry counts from the start"


def test_a_lost_file_fails_until_the_next_refresh(state: SqliteState, path: str) -> None:
    Path(path).unlink()
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        add(state, 6, 1)
    assert state.is_writable(), "a refresh can write it again"


def test_a_file_that_cannot_be_written_is_unhealthy(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        SqliteState(str(tmp_path / "missing" / "state.db"), TABLE).is_writable()
