"""The daemon's process: its HTTP server, signals, and notifications to systemd."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable

import structlog

from astha.clock import LoopClock, SystemLoopClock
from astha.daemon import Daemon
from astha.errors import ConfigError
from astha.gc_tuning import FreezingCollector
from astha.lanes.inspection import shown_state
from astha.server import Server
from astha.server.health import role
from astha.server.status import DaemonIdentity
from astha.settings import Settings
from astha.systemd import Notifier
from astha.tasks import cancel_and_wait
from astha.telemetry import configure_logging, set_level
from astha.tracing.factory import log_processors
from astha.wiring import AssembledDaemon, assemble, source_kind
from registry.errors import SchemaMismatch

log = structlog.get_logger(__name__)

_STATUS_INTERVAL_S = 1.0
INTERRUPTED = 130


async def serve(settings: Settings, reload: Callable[[], Settings], clock: LoopClock | None = None) -> None:
    """Runs until SIGTERM or SIGINT, then delivers queued events within a time limit; a second signal exits at once.

    SIGHUP takes the log level from `reload`. Raises the error that keeps the daemon from starting or running.
    """
    clock = clock or SystemLoopClock()
    redact = settings.redactor()
    configure_logging(settings.log, redact, processors=log_processors(settings.tracing))
    try:
        assembly = await assemble(settings, clock)
    except SchemaMismatch as error:
        raise ConfigError(str(error)) from error  # a restart would not help
    daemon = assembly.daemon
    notifier = Notifier()
    try:
        identity = DaemonIdentity(
            assembly.holder, settings.registry.shown, settings.server.stall_after_s, source_kind(settings)
        )
        server = Server(daemon, assembly.store, settings.group, settings.server, identity, redact, clock)
        _handle_signals(daemon, notifier, reload)
        await server.start()
        try:
            _log_start(assembly, settings)
            with FreezingCollector():
                await _run(daemon, notifier, clock)
        finally:
            await server.stop()
    finally:
        notifier.close()
        if assembly.tracing is not None:
            await assembly.tracing.close()
        await assembly.stores.close()
    log.info("stopped")


def _log_start(assembly: AssembledDaemon, settings: Settings) -> None:
    lanes = assembly.daemon.lanes
    log.info(
        "starting",
        registry=settings.registry.shown,
        holder=assembly.holder,
        components={lane.name: sorted(lane.tables) for lane in lanes},
    )
    if not lanes:
        log.warning("no component is subscribed: changes are discarded", file=str(settings.subscriptions))


async def _run(daemon: Daemon, notifier: Notifier, clock: LoopClock) -> None:
    reporting = asyncio.create_task(_report(daemon, notifier, clock), name="systemd")
    try:
        notifier.ready()  # a standby is ready for systemd, too
        await daemon.run()
    finally:
        await cancel_and_wait(reporting)


async def _report(daemon: Daemon, notifier: Notifier, clock: LoopClock) -> None:
    """Runs in the event loop: if that hangs, systemd gets no watchdog message and restarts the daemon."""
    interval = min(notifier.watchdog_interval_s() or _STATUS_INTERVAL_S, _STATUS_INTERVAL_S)
    while True:
        notifier.alive()
        notifier.status(status_line(daemon))
        await clock.sleep(interval)


def status_line(daemon: Daemon) -> str:
    """Returns a line such as ``leading; components: 2 live, 1 broken (audit)``."""
    if not daemon.leadership.leads:
        return role(daemon)
    states = Counter(str(shown_state(lane)) for lane in daemon.lanes)
    others = {
        state: [lane.name for lane in daemon.lanes if shown_state(lane) == state] for state in states if state != "live"
    }
    parts = [f"{states['live']} live"] if states["live"] else []
    parts += [f"{len(names)} {state} ({', '.join(names)})" for state, names in others.items()]
    return f"{role(daemon)}; components: {', '.join(parts) or 'none'}"


def _handle_signals(daemon: Daemon, notifier: Notifier, reload: Callable[[], Settings]) -> None:
    loop = asyncio.get_running_loop()

    def stop(name: str) -> None:
        if daemon.stopping:
            log.warning("second stop signal: exiting at once", signal=name)
            os._exit(INTERRUPTED)
        log.info("stop signal: delivering queued events", signal=name)
        notifier.stopping()
        daemon.stop()

    def read_level() -> None:
        try:
            level = reload().log.level
        except ConfigError as error:
            log.error("settings can't be reloaded: log level unchanged", error=str(error))
            return
        set_level(level)
        log.info("log level reloaded", level=level)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, signal.Signals(number).name)
    loop.add_signal_handler(signal.SIGHUP, read_level)
