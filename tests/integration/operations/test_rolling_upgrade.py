"""Two versions side by side, as processes: this one, and the next one, which has migrated the registry.

The versions of a rolling upgrade and of a rollback lead in turn, and every topic that is written meanwhile reaches the
component.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.integration.astha.processes import Astha, Daemon, add_topic, drop_slots, prepared
from tests.integration.operations.next_version import EXPANDING, NOTHING, with_revisions
from tests.integration.operations.test_schema_versions import HEAD
from tests.waiting import eventually_now

pytestmark = pytest.mark.slow


@pytest.fixture
def versions(url: str, tmp_path: Path) -> Iterator[tuple[Astha, Astha, Astha]]:
    """This version, a next one that is compatible with it, and one after that which is not."""
    compatible = with_revisions(tmp_path / "next", {"next": (HEAD, EXPANDING)})
    newest = with_revisions(tmp_path / "after", {"next": (HEAD, EXPANDING), "after": (None, NOTHING)})
    with prepared(url, tmp_path) as this:
        others = [
            Astha(tmp_path, url, this.environment, ("tests.integration.operations.next_version", str(scripts)))
            for scripts in (compatible, newest)
        ]
        try:
            yield this, others[0], others[1]
        finally:
            for daemon in (*others[0].started, *others[1].started):
                daemon.close()
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            eventually_now(lambda: drop_slots(connection), "the slot is free")


@contextmanager
def topics_written(url: str, names: list[str]) -> Iterator[None]:
    """Writes topics until the end of the block, as a program that knows nothing of versions."""
    enough = threading.Event()

    def write() -> None:
        while not enough.wait(0.05):
            names.append(f"topic-{len(names):04}")
            add_topic(url, names[-1])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        enough.set()
        writer.join(60)


def seen_by(astha: Astha, daemon: Daemon) -> list[str]:
    """Returns the topics that the component got from this daemon, in order."""
    lines = (line.split() for line in astha.audited())
    return [line[2] for line in lines if line[0] == str(daemon.process.pid) and line[1] == "INSERT"]


def test_versions_hand_over_both_ways(url: str, versions: tuple[Astha, Astha, Astha]) -> None:
    this, following, _ = versions
    names: list[str] = []

    def leads(daemon: Daemon) -> None:
        before = len(seen_by(this, daemon))
        eventually_now(lambda: len(seen_by(this, daemon)) > before, "the component called by this daemon", 60)

    old = this.run()
    eventually_now(lambda: bool(this.audited()), "the first refresh", 60)
    with topics_written(url, names):
        leads(old)
        upgraded = following("registry", "migrate")
        assert upgraded.returncode == 0, upgraded.stderr
        leads(old)  # it goes on with the newer schema
        new = following.run()
        new.logged("standing by")
        old.send(signal.SIGTERM)
        assert old.ended() == 0
        leads(new)
        again = this.run()  # a rollback of the program
        again.logged("standing by")
        new.send(signal.SIGKILL)
        new.ended()
        leads(again)
    assert this("registry", "migrate").returncode == 0, "the schema stays as it is"

    def delivered() -> list[str]:
        return [line.split()[2] for line in this.audited() if "INSERT" in line]

    eventually_now(lambda: set(names) <= set(delivered()), "every topic delivered", 60)
    assert list(dict.fromkeys(delivered())) == names, "in order; the killed leader's last ones may come twice"
    assert sum("REFRESH" in line for line in this.audited()) == 1, "no handover costs a refresh"


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_version_refuses_schemas_that_it_cannot_use(versions: tuple[Astha, Astha, Astha]) -> None:
    this, following, newest = versions
    early = following.run()
    assert early.ended() == 2, "before the migration"
    assert f"has schema {HEAD}, older than next: run `astha registry migrate`" in early.lines[-1]["event"]
    assert following("registry", "migrate").returncode == 0
    checked = this("check")
    assert f"next, newer than this Astha's {HEAD} and compatible with it" in checked.stdout
    leader = this.run()
    leader.logged("daemon leads")
    standby = this.run()
    standby.logged("standing by")
    assert newest("registry", "migrate").returncode == 0  # without stopping the daemons of a version too old for it
    leader.send(signal.SIGKILL)
    assert standby.ended() == 2, "it would use the schema only from now on"
    assert "has schema after, which this version of Astha does not know" in standby.lines[-1]["event"]
    late = this.run()
    assert late.ended() == 2
    assert "upgrade Astha" in late.lines[-1]["event"]
