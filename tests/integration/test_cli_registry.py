"""The installed command, as a process, against a real PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from registry.connect import open_store
from registry.copy import COPIED
from registry.migrate import migrate
from tests.integration.registries import NewUrl, contents, copy_server, fill, new_url

__all__ = ["copy_server", "new_url"]  # fixtures

ASTHA = Path(sys.executable).with_name("astha")


def astha(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ASTHA, *arguments], capture_output=True, text=True, check=False, timeout=60)


async def test_start_on_sqlite_and_move_to_postgres(new_url: NewUrl) -> None:
    sqlite, postgres = new_url("sqlite"), new_url("postgres")
    migrate(sqlite)
    store = await open_store(sqlite)
    await fill(store)
    original = await contents(store, COPIED)
    await store.close()

    assert astha("registry", "status", "--registry", postgres).returncode == 1
    copied = astha("registry", "copy", sqlite, postgres)

    assert copied.returncode == 0, copied.stderr
    assert " rows of sqlite://" in copied.stdout
    status = astha("registry", "status", "--registry", postgres, "--json")
    assert (status.returncode, json.loads(status.stdout)["state"]) == (0, "current")
    store = await open_store(postgres)
    assert await contents(store, COPIED) == original
    await store.close()


def test_an_unreachable_server_is_one_line_and_exit_code_3() -> None:
    result = astha("registry", "status", "--registry", "postgresql://me:secret@127.0.0.1:1/registry")
    assert result.returncode == 3
    assert result.stdout == ""
    assert result.stderr.startswith("astha: postgresql://me:***@127.0.0.1:1/registry: ")
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr


def test_status_waits_for_a_migration(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/registry.db"
    command = [str(ASTHA), "registry", "status", "--registry", url, "--wait", "60", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        assert astha("registry", "status", "--registry", url).returncode == 1
        assert waiting.poll() is None
        migrate(url)
        shown, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, json.loads(shown)["state"]) == (0, "current")


def test_status_stops_waiting(tmp_path: Path) -> None:
    missing = astha("registry", "status", "--registry", f"sqlite:///{tmp_path}/registry.db", "--wait", "0.1")
    assert missing.returncode == 1
    unreachable = astha("registry", "status", "--registry", "postgresql://me@127.0.0.1:1/registry", "--wait", "0.1")
    assert unreachable.returncode == 3
