"""`astha catalog`. Libraries that take long to load are imported when the command runs, not for its help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from astha.cli.options import settings_options

if TYPE_CHECKING:
    from astha.settings import Settings


@click.command("catalog", short_help="Serve the tables as an Iceberg REST catalog.")
@settings_options
def catalog_command(*, reload: Callable[[], Settings]) -> None:
    """Serve the tables of the lake as an Iceberg REST catalog, for any engine to read and write.

    Listens on `catalog.host` and `catalog.port` (127.0.0.1:27841) until it is stopped. Any address but a loopback one
    requires tokens or clients that log in. Any number of these processes may serve one registry.

    A commit by an engine is one transaction of the registry; components get its events as for `astha insert`.

    \b
    Examples:
      astha catalog
      astha catalog --registry postgresql://db/registry --set catalog.port=8181
    """
    from components.commands.catalog.process import serve

    asyncio.run(serve(reload()))
