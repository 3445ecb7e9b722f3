"""The leader's file lock: it tells that a process has ended, and never of a running one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from astha import inotify
from astha.clock import SystemLoopClock
from astha.leader_lock import LeaderLock, lock_directory
from astha.leadership import Leadership, LeaseSettings
from astha.testing import ManualClock
from tests.unit.astha.test_leadership import LeaseOffice, running
from tests.waiting import eventually

TTL_S = 10.0


def lock(directory: Path, holder: str, boot_id: str | None = None) -> LeaderLock:
    return LeaderLock(directory, "astha", holder, boot_id)


def end_in_child(directory: Path, holder: str) -> None:
    """A process that takes the lock and ends without releasing it, as if it was killed."""
    code = (
        "import os, sys; from pathlib import Path; from astha.leader_lock import LeaderLock;"
        "assert LeaderLock(Path(sys.argv[1]), 'astha', sys.argv[2]).take(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(directory), holder], check=False).returncode == 9


def test_a_running_holder_has_not_ended(tmp_path: Path) -> None:
    one, two = lock(tmp_path, "one"), lock(tmp_path, "two")
    assert one.take()
    assert one.take()
    assert not two.take_from("one")
    assert not two.take()


def test_a_holder_whose_process_ended(tmp_path: Path) -> None:
    end_in_child(tmp_path, "one")
    two = lock(tmp_path, "two")
    assert two.take_from("one")
    assert two.take_from("one"), "the lease could not be taken the first time"
    assert two.held
    assert not lock(tmp_path, "three").take_from("one"), "the file has another name by now"


def test_another_holder_than_the_one_that_ended(tmp_path: Path) -> None:
    end_in_child(tmp_path, "one")
    assert not lock(tmp_path, "two").take_from("a daemon on another machine")


def test_a_released_lock_proves_nothing(tmp_path: Path) -> None:
    """The holder runs on, and may lead again under the same name."""
    one, two = lock(tmp_path, "one"), lock(tmp_path, "two")
    assert one.take()
    assert one.release()
    assert not two.take_from("one")
    assert one.take()


def test_a_standby_that_has_the_lock_gives_it_up(tmp_path: Path) -> None:
    end_in_child(tmp_path, "one")
    two, three = lock(tmp_path, "two"), lock(tmp_path, "three")
    assert two.take_from("one")
    assert not two.take_from("three"), "that one leads now"
    assert three.take()


def test_a_directory_shared_with_another_machine_proves_nothing(tmp_path: Path) -> None:
    end_in_child(tmp_path, "one")
    assert not lock(tmp_path, "two", boot_id="another machine").take_from("one")
    assert not lock(tmp_path, "two", boot_id="").take()


def test_a_file_that_was_deleted_proves_nothing_and_is_made_again(tmp_path: Path) -> None:
    one, two = lock(tmp_path, "one"), lock(tmp_path, "two")
    assert one.take()
    one.path.unlink()
    assert not two.take_from("one"), "it runs, although its lock can be had"
    assert one.take()
    assert not two.take_from("one")
    assert b"one" in one.path.read_bytes()


def test_a_stopped_process_has_not_ended(tmp_path: Path) -> None:
    """A frozen leader keeps its lock: only the lease can end its leadership."""
    code = (
        "import sys, time; from pathlib import Path; from astha.leader_lock import LeaderLock;"
        "assert LeaderLock(Path(sys.argv[1]), 'astha', 'one').take(); print('held', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    two = lock(tmp_path, "two")
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        child.send_signal(signal.SIGSTOP)
        assert not two.take_from("one")
    finally:
        child.kill()
        child.communicate()
    assert two.take_from("one")


@pytest.mark.parametrize("base", ["RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR", "TMPDIR"])
def test_the_directory_is_of_one_user_and_one_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    for name in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)  # it is computed once
    monkeypatch.setenv(base, str(tmp_path))
    found = lock_directory("sqlite a")
    assert found is not None
    assert found.is_relative_to(tmp_path)
    assert found.stat().st_mode & 0o777 == 0o700
    assert lock_directory("sqlite a") == found
    assert lock_directory("sqlite b") != found
    found.parent.chmod(0o777)
    assert lock_directory("sqlite a") is None, "another user could replace the file"


def test_a_directory_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "file"))
    assert lock_directory("any") is None


@pytest.mark.parametrize("kind", ["missing", "link", "directory"])
def test_a_directory_that_cannot_be_used(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "run"
    if kind != "missing":
        directory.mkdir()
    if kind == "link":
        (directory / "astha.leader").symlink_to(tmp_path / "elsewhere")
    if kind == "directory":
        (directory / "astha.leader").mkdir()
    assert not lock(directory, "one").take()
    assert not lock(directory, "two").take_from("one")
    assert not (tmp_path / "elsewhere").exists()


def leadership(office: LeaseOffice, clock: ManualClock, directory: Path, holder: str) -> Leadership:
    return Leadership(office.store, LeaseSettings(ttl_s=TTL_S), holder, clock, lock=lock(directory, holder))


async def test_a_successor_does_not_wait_for_the_lease_of_an_ended_process(tmp_path: Path) -> None:
    clock = ManualClock()
    office = LeaseOffice(clock)
    await leadership(office, clock, tmp_path, "one").acquire()
    await asyncio.to_thread(end_in_child, tmp_path, "one")
    two = leadership(office, clock, tmp_path, "two")
    await asyncio.wait_for(two.acquire(), 60)  # no time passes on the clock
    assert two.lease.epoch == 2


async def test_a_successor_waits_for_a_leader_that_runs(tmp_path: Path) -> None:
    clock = ManualClock()
    office = LeaseOffice(clock)
    one, two = (leadership(office, clock, tmp_path, name) for name in ("one", "two"))
    await one.acquire()
    async with running(one.hold()) as holding:
        await eventually(lambda: one._lock is not None and one._lock.held, "the leader has the lock")
        holding.cancel()
    async with running(two.acquire()) as waiting:
        await clock.advance(TTL_S / 2)
        assert not waiting.done()
        await one.resign()
        await eventually(lambda: not (tmp_path / "astha.leader").read_bytes(), "the name is removed")

        async def leads() -> bool:
            await clock.advance(TTL_S / 5)
            return waiting.done()

        await eventually(leads, "the second leads")


async def test_a_standby_notices_the_end_of_the_leaders_process_without_polling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astha.leadership._LONGEST_POLL_S", 3_600.0)
    clock = ManualClock()
    office = LeaseOffice(clock)
    await leadership(office, clock, tmp_path, "one").acquire()
    code = (
        "import sys; from pathlib import Path; from astha.leader_lock import LeaderLock;"
        "assert LeaderLock(Path(sys.argv[1]), 'astha', 'one').take(); print('locked', flush=True); sys.stdin.read()"
    )
    leader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert leader.stdout is not None
    assert await leader.stdout.readline() == b"locked\n"
    long = LeaseSettings.model_construct(ttl_s=36_000.0)
    two = Leadership(office.store, long, "two", SystemLoopClock(), lock=lock(tmp_path, "two"))
    async with running(two.acquire()) as waiting:
        await eventually(lambda: two.standing_by, "the second stands by")
        assert not waiting.done()
        leader.kill()
        await eventually(waiting.done, "the second leads")
    await leader.wait()
    assert two.lease.epoch == 2


def test_looking_at_a_lock_wakes_no_other_standby(tmp_path: Path) -> None:
    one, two = lock(tmp_path, "one"), lock(tmp_path, "two")
    assert not two.looks_free(), "there is no file"
    assert one.take()
    descriptor = inotify.watch(tmp_path, inotify.CLOSE_WRITE)
    assert descriptor is not None
    try:
        assert not two.take_from("one")
        assert not two.looks_free()
        assert list(inotify.events(descriptor)) == []
        assert one.release()
        assert [name for _, name in inotify.events(descriptor)] == [b"astha.leader"]
        assert two.looks_free()
    finally:
        os.close(descriptor)


async def test_a_file_system_that_does_not_answer_is_left_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    one = Leadership(LeaseOffice(clock).store, LeaseSettings(ttl_s=0.4), "one", clock, lock=lock(tmp_path, "one"))
    reader, writer = os.pipe()
    assert not await one._with_lock(lambda _: bool(os.read(reader, 1)))
    assert one._lock is None
    os.write(writer, b"1")  # ends the thread
    os.close(writer)
    await one.acquire()
    assert one.leads
