"""`astha run`: the daemon."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

import click

from astha.cli.command_help import SHORT_HELP
from astha.cli.exit_codes import Exit, Failure, failure_of
from astha.cli.options import daemon_options, settings_options
from astha.redaction import Redactor

if TYPE_CHECKING:
    from astha.settings import Settings

_EXIT_TIMEOUT_S = 5.0


@click.command("run", short_help=SHORT_HELP["run"])
@settings_options
@daemon_options
def run_command(reload: Callable[[], Settings]) -> None:
    """Follow the registry and deliver its changes, until it is stopped.

    If another daemon of its group leads, this one stands by and takes over when that one ends. On SIGTERM or SIGINT it
    delivers queued events, for at most daemon.shutdown_timeout_s; a second signal ends it at once. SIGHUP reads the log
    level again.

    If the registry is not reachable at the start, the command exits with 3, for its supervisor to start it again. Once
    it runs, it reconnects by itself.

    \b
    Examples:
      astha run
      astha run --group reports --components compactor,snapshotter
    """
    from astha.gc_tuning import without_collections

    with without_collections():
        run_daemon(reload(), reload)


def run_daemon(settings: Settings, reload: Callable[[], Settings]) -> None:
    """Returns when the daemon was stopped."""
    from astha.process import serve  # here: no other command needs the server

    forced_exit = _ForcedExit(settings.redactor())
    try:
        asyncio.run(forced_exit.after(serve(settings, reload)))
    finally:
        forced_exit.cancel_if_done()


class _ForcedExit:
    """Ends the process some seconds after the daemon has stopped, if tasks or threads of a component still block it."""

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._timer = threading.Timer(_EXIT_TIMEOUT_S, self._end)
        self._timer.daemon = True
        self._failure: Failure | None = None
        self._others = set(threading.enumerate())  # of a caller that runs the command in its own process

    async def after(self, serving: Coroutine[None, None, None]) -> None:
        try:
            await serving
        except Exception as error:
            self._failure = failure_of(error, self._redact)
            raise
        finally:
            self._timer.start()

    def cancel_if_done(self) -> None:
        """Called when all tasks have ended. The interpreter would wait for remaining threads without a limit."""
        if all(thread.daemon or thread in self._others for thread in threading.enumerate()):
            self._timer.cancel()

    def _end(self) -> None:
        if self._failure is not None:
            self._failure.show()
        os._exit(Exit.OK if self._failure is None else self._failure.exit_code)
