"""Leader election between pods, as processes: a rolling update, a lost node, and a container restarted in its pod.

The tests compare times of the lease's rows, which the daemons wrote, and assert no duration, except the one that `make
faults` runs for that. `pytest -s` prints for how long there was no leader.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.integration.astha.processes import Astha, Daemon, add_topic, astha, postgres_registry
from tests.waiting import eventually_now

__all__ = ["astha", "postgres_registry"]  # fixtures

pytestmark = pytest.mark.slow

ROLLING_UPDATES = 10
MOST_WITHOUT_LEADER_MS = 1_000

LONG_LEASE = {"ASTHA_LEASE__TTL_S": "60"}
"""No test waits for it to expire, on however slow a machine."""


class LeaseWatcher:
    """Every state of the lease's row: (holder, epoch, acquired_at, expires_at)."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended = threading.Event()
        self._seen_ms: dict[int, int] = {}  # epoch -> the last look at it
        self.rows: list[tuple[str, int, int, int]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(30)

    def _watch(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ended.wait(0.002):
                now_ms, row = time.time_ns() // 1_000_000, lease(connection)
                if row is not None:
                    self._seen_ms[row[1]] = now_ms
                if row is not None and (not self.rows or row != self.rows[-1]):
                    self.rows.append(row)

    def of(self, epoch: int) -> list[tuple[str, int, int, int]]:
        return [row for row in self.rows if row[1] == epoch]

    def gap_ms(self, before: tuple[str, int, int, int], after: tuple[str, int, int, int]) -> int:
        """Returns the time from the release of the first lease to the next one. If the watcher was too slow to see the
        release, the time since it last saw the lease held.
        """
        released = self.of(before[1])[-1][3]
        return after[2] - (released if released < before[3] else self._seen_ms[before[1]])


def lease(connection: psycopg.Connection[tuple[object, ...]]) -> tuple[str, int, int, int] | None:
    query = "SELECT holder, epoch, acquired_at, expires_at FROM daemon_lease WHERE name = 'astha'"
    row = connection.execute(query).fetchone()
    return None if row is None else (str(row[0]), int(str(row[1])), int(str(row[2])), int(str(row[3])))


def lease_now(url: str) -> tuple[str, int, int, int]:
    with psycopg.connect(url) as connection:
        found = lease(connection)
    assert found is not None
    return found


def until_audited(astha: Astha, ending: str) -> None:
    eventually_now(lambda: any(line.endswith(ending) for line in astha.audited()), f"{ending!r} is delivered")


def leader(astha: Astha, **environment: str) -> Daemon:
    daemon = astha.run(environment={**LONG_LEASE, **environment})
    daemon.until_ready()
    return daemon


class Writer:
    """Adds a topic every few milliseconds, and notes when the components have it: `longest_pause_s`."""

    def __init__(self, astha: Astha, prefix: str = "during") -> None:
        self._astha = astha
        self._prefix = prefix
        self._ended = threading.Event()
        self.written = 0
        self.longest_pause_s = 0.0

    @contextmanager
    def writing(self) -> Iterator[None]:
        threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._observe)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join(30)

    def name(self, number: int) -> str:
        return f"{self._prefix} {number}"

    def _write(self) -> None:
        while not self._ended.wait(0.01):
            add_topic(self._astha.url, self.name(self.written))
            self.written += 1

    def _observe(self) -> None:
        lines, last = len(self._astha.audited()), time.monotonic()
        while not self._ended.wait(0.002):
            found, now = len(self._astha.audited()), time.monotonic()
            if found != lines:
                lines, self.longest_pause_s, last = found, max(self.longest_pause_s, now - last), now


def test_a_rolling_update(astha: Astha) -> None:
    """The new pod stands by, the old one gets SIGTERM: the lease is released, not waited for."""
    old = leader(astha)
    new = astha.run(environment=LONG_LEASE)
    new.logged("standing by")
    watcher, writer = LeaseWatcher(astha.url), Writer(astha)
    with watcher.watching(), writer.writing():
        until_audited(astha, "INSERT during 20")
        before = lease_now(astha.url)
        old.send(signal.SIGTERM)
        new.until_ready()
        until_audited(astha, f"INSERT during {writer.written + 5}")
    assert old.ended() == 0
    after = lease_now(astha.url)
    assert after[1] == before[1] + 1
    assert after[2] < before[3], "the new leader did not wait for the old one's lease to expire"
    until_audited(astha, f"INSERT during {writer.written - 1}")
    delivered = [line.split(" ", 1)[1] for line in astha.audited() if "INSERT during" in line]
    assert list(dict.fromkeys(delivered)) == [f"INSERT during {number}" for number in range(writer.written)]
    pause = f"longest pause of deliveries {writer.longest_pause_s:.2f} s"
    print(f"\nrolling update: {watcher.gap_ms(before, after)} ms without a leader; {pause}")  # noqa: T201


@pytest.mark.long
def test_the_time_without_a_leader_in_rolling_updates(astha: Astha, tmp_path: Path) -> None:
    """One pod after the other is replaced, each with a directory of its own, while a writer writes."""

    def pod(number: int) -> dict[str, str]:
        directory = tmp_path / f"pod-{number}"
        directory.mkdir()
        return {"ASTHA_LEASE__DIRECTORY": str(directory)}

    old = leader(astha, **pod(0))
    gaps_ms: list[int] = []
    pauses_s: list[float] = []
    for number in range(1, ROLLING_UPDATES + 1):
        new = astha.run(environment={**LONG_LEASE, **pod(number)})
        new.logged("standing by")
        watcher, writer = LeaseWatcher(astha.url), Writer(astha, f"update {number},")
        with watcher.watching(), writer.writing():
            until_audited(astha, f"INSERT {writer.name(20)}")
            before = lease_now(astha.url)
            old.send(signal.SIGTERM)
            new.until_ready()
            until_audited(astha, f"INSERT {writer.name(writer.written + 5)}")
        assert old.ended() == 0
        after = lease_now(astha.url)
        assert after[1] == before[1] + 1
        gaps_ms.append(watcher.gap_ms(before, after))
        pauses_s.append(round(writer.longest_pause_s, 2))
        old = new
    print(f"\nrolling updates: {sorted(gaps_ms)} ms without a leader; pauses {sorted(pauses_s)} s")  # noqa: T201
    assert max(gaps_ms) <= MOST_WITHOUT_LEADER_MS, gaps_ms


def test_a_standby_that_is_replaced_disturbs_no_one(astha: Astha) -> None:
    one = leader(astha)
    two = astha.run(environment=LONG_LEASE)
    two.logged("standing by")
    before = lease_now(astha.url)
    two.send(signal.SIGTERM)
    assert two.ended() == 0
    add_topic(astha.url, "later")
    until_audited(astha, "INSERT later")
    assert lease_now(astha.url)[:3] == before[:3]
    assert one.process.poll() is None


def test_a_node_that_is_gone_is_replaced_after_its_lease(astha: Astha, tmp_path: Path) -> None:
    """Nothing was released, and the successor on another node has another directory."""
    ttl = {"ASTHA_LEASE__TTL_S": "2"}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = leader(astha, **ttl, ASTHA_LEASE__DIRECTORY=str(tmp_path / "one"))
    two = astha.run(environment={**ttl, "ASTHA_LEASE__DIRECTORY": str(tmp_path / "two")})
    two.logged("standing by")
    epoch = lease_now(astha.url)[1]
    watcher = LeaseWatcher(astha.url)
    with watcher.watching():
        eventually_now(lambda: bool(watcher.of(epoch)), "the lease is watched")
        one.send(signal.SIGKILL)
        one.ended()
        two.until_ready()
        add_topic(astha.url, "later")
        until_audited(astha, "INSERT later")
    before, after = watcher.of(epoch)[-1], watcher.of(epoch + 1)[0]
    assert after[2] >= before[3], "until then the old leader might have been alive"
    print(f"\nlost node: led {after[2] - before[3]} ms after the lease had expired")  # noqa: T201


def test_a_container_that_is_restarted_in_its_pod(astha: Astha, tmp_path: Path) -> None:
    """The pod's directory shows that the former process has ended, so its lease need not expire."""
    directory = tmp_path / "run"
    directory.mkdir()
    environment = {"ASTHA_LEASE__DIRECTORY": str(directory)}
    one = leader(astha, **environment)
    eventually_now((directory / "astha.leader").exists, "the leader has the lock")
    one.send(signal.SIGKILL)
    one.ended()
    before = lease_now(astha.url)
    add_topic(astha.url, "meanwhile")
    two = leader(astha, **environment)
    after = lease_now(astha.url)
    assert (after[1], after[0] != before[0]) == (before[1] + 1, True)
    assert after[2] < before[3], "it did not wait for the lease of the killed process"
    assert two.logged("took over a lease")["reason"] == "its process has ended"
    until_audited(astha, "INSERT meanwhile")
