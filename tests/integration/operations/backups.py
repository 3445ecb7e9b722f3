"""Backups as docs/operations describes them, with the database's own programs."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from registry.engines import parse_url, sqlite_path
from tests.servers.packages import find_program


def dump(url: str, to: Path) -> None:
    """A consistent copy of the registry, while writers work."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(sqlite_path(parse_url(url)))) as connection:
            connection.execute("VACUUM INTO ?", [str(to)])
    else:
        _run("pg_dump", "--format=custom", f"--file={to}", url)


def restore(backup: Path, url: str) -> None:
    """Puts the backup in the place of what is there."""
    if url.startswith("sqlite"):
        path = sqlite_path(parse_url(url))
        new = path.with_name("restored.db")
        new.write_bytes(backup.read_bytes())
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        new.rename(path)
    else:
        _run("pg_restore", "--clean", "--if-exists", "--single-transaction", f"--dbname={url}", str(backup))


def _run(name: str, *arguments: str) -> None:
    program = find_program(name, "postgresql-client")
    done = subprocess.run(
        [str(program.path), *arguments], env={**os.environ, **program.environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
