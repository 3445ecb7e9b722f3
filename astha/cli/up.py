"""`astha up`: registry, migrations and daemon of a project, in one process that Ctrl-C ends."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from astha.cli.command_help import SHORT_HELP
from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import settings_options
from astha.cli.progress import progress

if TYPE_CHECKING:
    from astha.settings import Settings

_PORT = 5432  # of the socket's name only: the embedded server does not listen on TCP


@click.command("up", short_help=SHORT_HELP["up"])
@settings_options
def up_command(reload: Callable[[], Settings]) -> None:
    """Start what one machine needs: the embedded registry, its schema and the daemon. Ctrl-C stops all of it.

    Uses the registry of the settings if they name one. In a directory without astha.yaml it writes one first, as
    `astha init` does. Data stays in the directory: the next `astha up` goes on with it. Meanwhile, other commands that
    run in this directory use the same registry.

    \b
    Example:
      astha up
    """
    from astha.cli.project import SERVER_DIRECTORY, SETTINGS_FILE, embedded_directory, write_project
    from astha.cli.run import run_daemon

    settings = reload()
    if "url" not in settings.registry.model_fields_set:
        if Path(SETTINGS_FILE).exists():
            raise Failure(f"{SETTINGS_FILE} names no registry: set registry.url, or remove the file", Exit.USAGE)
        project = write_project(Path(), force=False)
        for path in project.paths:
            click.echo(f"wrote {path}")
        click.echo(f"The registry is {project.registry}.")
        settings = reload()
    url = settings.registry.url.get_secret_value()
    directory = embedded_directory(url)
    with _only_one((directory or Path.cwd() / SERVER_DIRECTORY).parent), _server(directory):
        _migrate(settings)
        click.echo(f"registry   {settings.registry.shown}")
        click.echo(f"dashboard  {_dashboard(settings)}")
        click.echo("Ctrl-C stops everything; the data stays.")
        run_daemon(settings, reload)
    click.echo("stopped")


def _dashboard(settings: Settings) -> str:
    """Returns its address: on a terminal with the token, which is not for logs."""
    token = settings.server.secret()
    if token is None or not sys.stdout.isatty():
        return f"{settings.server.url}/"
    return f"{settings.server.url}/dashboard/#token={token}"


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Raises `Failure` if another process holds the directory's lock, which ends with its process."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)  # the user of a server that root starts enters it
    with (directory / "up.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Failure(
                f"`astha up` runs for {directory.parent} already, as process {file.read().strip() or 'unknown'}: "
                "use it, or stop it first",
                Exit.PROBLEM,
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def _server(directory: Path | None) -> Iterator[None]:
    if directory is None:
        yield
        return
    from registry.embedded_postgres import EmbeddedPostgres

    server = EmbeddedPostgres(directory, {"listen_addresses": ""})
    server.port = _PORT
    with ExitStack() as running:
        with progress("starting PostgreSQL"):
            running.enter_context(server)
        yield


def _migrate(settings: Settings) -> None:
    from astha.cli.store import with_store
    from astha.lake_locations import record_explicit
    from registry.migrate import migrate

    with progress("migrating the registry"):
        migrate(settings.registry.url.get_secret_value(), settings.registry.store)
    with_store(settings, lambda store: record_explicit(settings, store))
