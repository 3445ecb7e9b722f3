from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astha.sources.sqlite.commit_watcher import CommitWatcher, DirectoryWatch, PollIntervals

DEADLINE_S = 30.0
ONLY_HINTS = PollIntervals(idle=3600.0, longest=0.002)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "registry.db"
    path.write_bytes(b"")
    return path


@pytest.fixture(params=[True, False], ids=["inotify", "asking"])
def watch(request: pytest.FixtureRequest, database: Path) -> Iterator[CommitWatcher]:
    """With inotify, it polls only after a hint."""
    made = CommitWatcher(database, ONLY_HINTS, inotify=request.param)
    assert made.uses_inotify == request.param
    yield made
    made.stop()
    made.close()


def waiting(watch: CommitWatcher, changed: Callable[[], bool]) -> threading.Thread:
    thread = threading.Thread(target=watch.wait, args=(changed,), daemon=True)
    thread.start()
    return thread


def ends(thread: threading.Thread) -> bool:
    thread.join(DEADLINE_S)
    return not thread.is_alive()


def test_an_earlier_change_is_not_waited_for(watch: CommitWatcher) -> None:
    watch.wait(lambda: True)


@pytest.mark.parametrize("name", ["registry.db", "registry.db-wal"])
def test_a_write_ends_the_wait_once_it_is_visible(watch: CommitWatcher, database: Path, name: str) -> None:
    asked, visible = threading.Event(), threading.Event()
    count = 0

    def changed() -> bool:
        nonlocal count
        count += 1
        if count == 5:
            asked.set()
        return visible.is_set()

    thread = waiting(watch, changed)
    (database.parent / name).write_bytes(b"frames")
    assert asked.wait(DEADLINE_S), "a hint that comes before the commit shows must be asked about again"
    visible.set()
    assert ends(thread)


def test_a_file_moved_into_place_ends_the_wait(watch: CommitWatcher, database: Path) -> None:
    before = database.stat().st_ino
    thread = waiting(watch, lambda: database.stat().st_ino != before)
    other = database.with_name("other")
    other.write_bytes(b"")
    other.rename(database)
    assert ends(thread)


def test_stop_ends_the_wait_and_all_that_follow(watch: CommitWatcher) -> None:
    thread = waiting(watch, lambda: False)
    watch.stop()
    assert ends(thread)
    watch.wait(lambda: False)
    watch.pause(3600.0)
    watch.stop()


def test_other_files_of_the_directory_are_no_hint(database: Path) -> None:
    directory = DirectoryWatch.of(database)
    assert directory is not None
    try:
        database.with_name("other.db-wal").write_bytes(b"x")
        assert not directory.drain()
        database.with_name("registry.db-wal").write_bytes(b"x")
        assert directory.drain()
        assert not directory.drain()
    finally:
        directory.close()


def test_a_link_is_watched_where_it_leads(tmp_path: Path, database: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = elsewhere / "link.db"
    link.symlink_to(database)
    directory = DirectoryWatch.of(link)
    assert directory is not None
    try:
        database.with_name("registry.db-wal").write_bytes(b"x")
        assert directory.drain()
    finally:
        directory.close()


def test_without_a_directory_there_is_nothing_to_watch(tmp_path: Path) -> None:
    assert DirectoryWatch.of(tmp_path / "missing" / "registry.db") is None


def test_without_inotify_the_file_is_polled(database: Path) -> None:
    watch = CommitWatcher(database, inotify=False)
    assert not watch.uses_inotify
    count = 0

    def changed() -> bool:
        nonlocal count
        count += 1
        return count > 20

    assert ends(waiting(watch, changed))
    watch.stop()
    watch.close()
    watch.close()
