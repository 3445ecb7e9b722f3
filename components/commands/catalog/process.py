"""The catalog's process: it listens, serves until it is stopped, and reports to systemd."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import msgspec
import structlog

from astha.clock import SystemLoopClock
from astha.errors import ConfigError
from astha.lake_locations import located
from astha.listener.accepting import accepting
from astha.listener.opening import bind, http_options
from astha.settings import Settings
from astha.systemd import Notifier
from astha.tasks import cancel_and_wait
from astha.telemetry import configure_logging
from components.commands.catalog.app import Catalog
from components.commands.catalog.body_limit import BodyLimit
from components.commands.catalog.security.access import CatalogAccess
from components.commands.catalog.service import open_service
from components.lib.lake.iceberg.catalog import file_io_properties
from registry.connect import open_store
from registry.errors import SchemaMismatch

log = structlog.get_logger(__name__)

GROUP = "catalog"
"""The name of the settings, for messages."""

_SHUTDOWN_TIMEOUT_S = 5.0
_REQUEST_TIMEOUT_S = 300.0
"""A commit may wait for others, and reading its manifests may take two minutes."""

_WATCHDOG_S = 1.0


async def serve(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT, then ends the requests in flight. Raises the error that keeps it from starting."""
    configure_logging(settings.log, settings.redactor())
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    notifier = Notifier()
    try:
        async with running(settings) as catalog:
            log.info("serving the Iceberg REST catalog", url=catalog.url, registry=settings.registry.shown)
            if settings.catalog.clients and settings.catalog.signing_key() is None:
                log.info("tokens are accepted by this process only: set catalog.token_key_file to run several")
            notifier.ready()
            await until_stopped(stopping, catalog.tasks, notifier)
            notifier.stopping()
    finally:
        notifier.close()
    log.info("stopped")


class RunningCatalog(NamedTuple):
    url: str
    tasks: list[asyncio.Task[None]]  # they accept connections: none of them ends by itself


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[RunningCatalog]:
    """Serves during the block."""
    options = msgspec.structs.replace(http_options(settings.catalog, GROUP), busy_timeout_s=_REQUEST_TIMEOUT_S)
    access = CatalogAccess.of(settings.catalog, options)
    url = settings.registry.url.get_secret_value()
    clock = SystemLoopClock()
    async with AsyncExitStack() as stack:
        try:
            store = await open_store(url, settings=settings.registry.store, clock=clock)
        except SchemaMismatch as error:
            raise ConfigError(str(error)) from error  # a restart would not help
        stack.push_async_callback(store.close)
        settings = await located(settings, store, record=True)
        service = await stack.enter_async_context(open_service(settings, store, clock))
        config = file_io_properties(settings.lake.s3) if settings.catalog.vend_credentials else {}
        catalog = Catalog(service, access, BodyLimit(settings.catalog.max_bodies_bytes), config)
        listening = await bind(settings.catalog, GROUP)
        for sock in listening:
            stack.callback(sock.close)
        serving = accepting(catalog.app(), listening, options, shutdown_timeout_s=_SHUTDOWN_TIMEOUT_S)
        catalog.connections, tasks = await stack.enter_async_context(serving)
        host, port, *_ = listening[0].getsockname()
        yield RunningCatalog(settings.catalog.url_of(host, port), tasks)


async def until_stopped(stopping: asyncio.Event, tasks: list[asyncio.Task[None]], notifier: Notifier) -> None:
    """Tells systemd's watchdog that the event loop runs, until the event is set. Raises the error of a task that has
    failed: a supervisor starts the process again, which would otherwise accept nothing.
    """
    interval = min(notifier.watchdog_interval_s() or _WATCHDOG_S, _WATCHDOG_S)
    stopped = asyncio.create_task(stopping.wait(), name="stop")
    try:
        while not stopped.done():
            notifier.alive()
            done, _ = await asyncio.wait({stopped, *tasks}, timeout=interval, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
    finally:
        await cancel_and_wait(stopped)
