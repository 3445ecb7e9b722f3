from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from components.lib.lake.isolation import ChildDied, ChildNotStarted, ChildPool, ChildRaised, child_pool
from tests.waiting import eventually_now

HERE = "tests.unit.components.lib.lake.child_functions"
LONG_S = 60.0


@pytest.fixture
def pool() -> Iterator[ChildPool]:
    found = ChildPool(2)
    yield found
    found.close()


def test_one_process_serves_many_calls(pool: ChildPool) -> None:
    large = os.urandom(3 << 20)
    assert pool.call(f"{HERE}:echo", large, limit_s=LONG_S) == large
    first = pool.call(f"{HERE}:process_id", b"", limit_s=LONG_S)
    assert pool.call(f"{HERE}:print_loudly", b"x", limit_s=LONG_S) == b"x"
    assert pool.call(f"{HERE}:process_id", b"", limit_s=LONG_S) == first != str(os.getpid()).encode()
    assert pool.started == 1


def test_a_crash_fails_only_its_own_call(pool: ChildPool) -> None:
    with pytest.raises(ChildDied, match="SIGABRT"):
        pool.call(f"{HERE}:abort", b"", limit_s=LONG_S)
    assert pool.call(f"{HERE}:echo", b"x", limit_s=LONG_S) == b"x"
    assert pool.started == 2


def test_a_killed_process_is_replaced_once(pool: ChildPool) -> None:
    process = psutil.Process(int(pool.call(f"{HERE}:process_id", b"", limit_s=LONG_S)))
    process.kill()
    assert pool.call(f"{HERE}:echo", b"x", limit_s=LONG_S) == b"x"
    with pytest.raises(ChildDied, match="SIGKILL"):
        pool.call(f"{HERE}:kill", b"", limit_s=LONG_S)


def test_a_call_that_takes_too_long_is_ended(pool: ChildPool) -> None:
    process = psutil.Process(int(pool.call(f"{HERE}:process_id", b"", limit_s=LONG_S)))
    with pytest.raises(ChildDied, match="time limit"):
        pool.call(f"{HERE}:sleep", b"", limit_s=0.2)
    eventually_now(lambda: not process.is_running(), "the end of the process")


def test_memory_is_limited(pool: ChildPool) -> None:
    with pytest.raises(ChildRaised) as caught:
        pool.call(f"{HERE}:allocate", b"300000000", limit_s=LONG_S, memory_bytes=200_000_000)
    assert caught.value.kind == "MemoryError"
    assert pool.call(f"{HERE}:allocate", b"300000000", limit_s=LONG_S, memory_bytes=400_000_000) == b"300000000"
    assert int(pool.call(f"{HERE}:memory_limit", b"", limit_s=LONG_S)) > 0


def test_errors_of_the_function_are_raised(pool: ChildPool) -> None:
    with pytest.raises(ChildRaised, match=r"^so it is$") as caught:
        pool.call(f"{HERE}:fail", b"so it is", limit_s=LONG_S)
    assert caught.value.kind == "ValueError"
    assert pool.started == 1


def test_a_child_gets_no_secrets(pool: ChildPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_REGISTRY__URL", "postgresql://user:secret@host/db")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    names = pool.call(f"{HERE}:environment", b"", limit_s=LONG_S).decode().split("\n")
    assert "PYTHONPATH" in names
    assert not [name for name in names if name.startswith(("ASTHA", "AWS"))]


def test_many_threads_share_the_processes(pool: ChildPool) -> None:
    with ThreadPoolExecutor(6) as threads:
        work = [threads.submit(pool.call, f"{HERE}:echo", bytes([n]), limit_s=LONG_S) for n in range(40)]
        assert [one.result() for one in work] == [bytes([n]) for n in range(40)]
    assert pool.started <= 2


def test_a_child_that_cannot_be_started_is_not_blamed_on_the_file(
    pool: ChildPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(ChildNotStarted, match="can't be run"):
        pool.call(f"{HERE}:echo", b"x", limit_s=LONG_S)
    monkeypatch.undo()
    monkeypatch.setattr(child_pool, "_MODULE", "components.lib.lake.isolation.nothing")
    with pytest.raises(ChildNotStarted, match="did not start"):
        pool.call(f"{HERE}:echo", b"x", limit_s=LONG_S)


@pytest.mark.parametrize("work", ["echo", "sleep"])
def test_a_child_ends_with_its_parent(work: str) -> None:
    """Whether idle or busy, and however the parent ends."""
    program = f"""
import threading, time
from components.lib.lake.isolation import ChildPool
pool = ChildPool()
print(pool.call("{HERE}:process_id", b"", limit_s=60).decode(), flush=True)
threading.Thread(target=lambda: pool.call("{HERE}:{work}", b"", limit_s=600), daemon=True).start()
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        process = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        eventually_now(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "the child's end")
