"""`astha run`: the daemon."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine

import click

from astha.cli.exits import Exit, Failure, failure_of
from astha.cli.options import settings_options
from astha.settings import Settings

_LAST_RESORT_S = 5.0
"""A component's thread or task that never ends must not keep the process."""


@click.command("run", short_help="The daemon: follow the registry and deliver its changes.")
@settings_options
def run_command(reload: Callable[[], Settings]) -> None:
    """Follow the registry and deliver its changes, until told to stop.

    If another daemon leads, this one stands by and takes over when that one ends. SIGTERM and SIGINT finish what waits,
    within daemon.shutdown_timeout_s; a second one ends at once. SIGHUP reads the log level again.

    A registry that does not answer at the start ends the command with code 3; whoever supervises it tries again. Once
    it runs, it reconnects by itself.
    """
    from astha.service import serve  # the web server need not be loaded for all other commands

    asyncio.run(_serve_and_end(serve(reload(), reload)))


async def _serve_and_end(serving: Coroutine[None, None, None]) -> None:
    try:
        await serving
    except Exception as error:
        _end_soon(failure_of(error))
        raise
    _end_soon(None)


def _end_soon(failure: Failure | None) -> None:
    """In vain, if all goes well: by then the process has ended in the ordinary way."""

    def end() -> None:
        if failure is not None:
            failure.show()
        os._exit(Exit.OK if failure is None else failure.exit_code)

    last_resort = threading.Timer(_LAST_RESORT_S, end)
    last_resort.daemon = True
    last_resort.start()
