"""`astha run`: the daemon."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine

import click

from astha.cli.exit_codes import Exit, Failure, failure_of
from astha.cli.options import settings_options
from astha.redaction import Redactor
from astha.settings import Settings

_PATIENCE_S = 5.0


@click.command("run", short_help="The daemon: follow the registry and deliver its changes.")
@settings_options
def run_command(reload: Callable[[], Settings]) -> None:
    """Follow the registry and deliver its changes, until told to stop.

    If another daemon leads, this one stands by and takes over when that one ends. SIGTERM and SIGINT finish what waits,
    within daemon.shutdown_timeout_s; a second one ends at once. SIGHUP reads the log level again.

    A registry that does not answer at the start ends the command with code 3; whoever supervises it tries again. Once
    it runs, it reconnects by itself.
    """
    from astha.process import serve  # the web server need not be loaded for all other commands

    settings = reload()
    last_resort = _LastResort(settings.redactor())
    try:
        asyncio.run(last_resort.after(serve(settings, reload)))
    finally:
        last_resort.stand_down()


class _LastResort:
    """Ends the process some seconds after its work is done, if tasks or threads of a component still hold it."""

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._timer = threading.Timer(_PATIENCE_S, self._end)
        self._timer.daemon = True
        self._failure: Failure | None = None
        self._others = set(threading.enumerate())  # who was there before: whoever calls the command, in its own process

    async def after(self, serving: Coroutine[None, None, None]) -> None:
        try:
            await serving
        except Exception as error:
            self._failure = failure_of(error, self._redact)
            raise
        finally:
            self._timer.start()

    def stand_down(self) -> None:
        """All tasks have ended. Threads that have not are waited for by the interpreter, for ever."""
        if all(thread.daemon or thread in self._others for thread in threading.enumerate()):
            self._timer.cancel()

    def _end(self) -> None:
        if self._failure is not None:
            self._failure.show()
        os._exit(Exit.OK if self._failure is None else self._failure.exit_code)
