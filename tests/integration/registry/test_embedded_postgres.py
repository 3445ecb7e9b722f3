"""The embedded server: starts anywhere, leaves nothing behind, does not outlive its parent process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from registry import embedded_postgres
from registry.embedded_postgres import EmbeddedPostgres
from registry.errors import Unavailable
from registry.migrate import migrate
from tests.fixtures.databases import SERVER_SETTINGS
from tests.waiting import eventually_now


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(url) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def test_a_temporary_server_leaves_nothing_behind(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (scratch / "temporary").mkdir(mode=0o711)
    monkeypatch.setattr("tempfile.tempdir", str(scratch / "temporary"))
    with EmbeddedPostgres(settings=SERVER_SETTINGS) as server:
        url, pid = server.url("postgres"), server.pid
        assert pid is not None
        with psycopg.connect(url) as connection:
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        assert _answers(server.url("postgres", unix=True))
        backends = list(embedded_postgres._children(pid))
    assert not any(_running(one) for one in (pid, *backends))
    assert not _answers(url)
    assert list((scratch / "temporary").iterdir()) == []
    server.stop()  # twice is once


def test_a_given_directory_keeps_its_data(scratch: Path) -> None:
    with EmbeddedPostgres(scratch / "own", settings=SERVER_SETTINGS) as server:
        first = server.port
        with psycopg.connect(server.url("postgres")) as connection:
            connection.execute("CREATE TABLE kept (n int)")
        server.stop()
        server.start()
        assert server.port == first
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (server.directory, server.data, server.log)]
        assert modes == [0o700, 0o700, 0o600]
    with (
        EmbeddedPostgres(scratch / "own", settings=SERVER_SETTINGS) as server,
        psycopg.connect(server.url("postgres")) as connection,
    ):
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_a_crash_is_recovered_from_at_once_whatever_was_running(scratch: Path) -> None:
    """Even with busy backends, which would otherwise outlive their postmaster and keep the data directory."""
    with EmbeddedPostgres(scratch / "crash", settings=SERVER_SETTINGS) as server:
        for _ in range(3):
            busy = psycopg.connect(server.url("postgres"))
            busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1000000000)")
            server.kill()
            assert server.pid is None
            server.start()
            assert _answers(server.url("postgres"))
            busy.close()


def test_a_server_that_does_not_start_says_why(scratch: Path) -> None:
    server = EmbeddedPostgres(scratch / "wrong", settings={"shared_buffers": "a lot"})
    with pytest.raises(Unavailable, match="shared_buffers"), server:
        pass
    assert server.pid is None


@pytest.mark.slow
def test_packaged_programs_work(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = [
        directory for directory in embedded_postgres._packaged_directories() if embedded_postgres._has_server(directory)
    ]
    assert packaged, "the extra `embedded` is part of `dev`"
    monkeypatch.delenv(embedded_postgres.BIN_SETTING, raising=False)
    monkeypatch.setattr(embedded_postgres, "_system_directories", lambda: iter(()))
    with EmbeddedPostgres(scratch / "packaged", settings=SERVER_SETTINGS) as server:
        assert migrate(server.url("postgres")).state == "current"
        with psycopg.connect(server.url("postgres")) as connection:
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another user")
def test_programs_in_an_inaccessible_directory_are_copied(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtualenv in a 0700 home: root can enter, the server's user can't."""
    (packaged, *_) = (one for one in embedded_postgres._packaged_directories() if embedded_postgres._has_server(one))
    closed = scratch / "closed"
    closed.mkdir(mode=0o700)
    (closed / "install").symlink_to(packaged.parent)
    monkeypatch.setenv(embedded_postgres.BIN_SETTING, str(closed / "install" / "bin"))
    with EmbeddedPostgres(scratch / "brought", settings=SERVER_SETTINGS) as server:
        assert server.bin.is_relative_to(server.directory)
        assert _answers(server.url("postgres"))


_PARENT = """
import sys, time
from pathlib import Path
from registry.embedded_postgres import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), settings={"fsync": "off"})
server.start()
print(server.pid, server.url("postgres"), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_the_server_dies_with_its_parent(scratch: Path) -> None:
    """Even if the parent is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(scratch / "orphan")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, url = parent.stdout.readline().split()
        assert _answers(url)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        eventually_now(lambda: not _running(int(pid)), "the server follows its parent")
    assert not _answers(url)
