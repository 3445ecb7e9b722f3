"""A daemon as a process: its server, the signals it heeds, and what systemd hears of it."""

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
from astha.server.status import Self
from astha.settings import Settings
from astha.systemd import Notifier
from astha.telemetry import configure_logging, set_level
from astha.wiring import Assembly, assemble

log = structlog.get_logger(__name__)

_STATUS_INTERVAL_S = 1.0
INTERRUPTED = 130


async def serve(settings: Settings, reload: Callable[[], Settings], clock: LoopClock | None = None) -> None:
    """Until SIGTERM or SIGINT, then what waits is finished within its limit; a second signal ends it at once.

    SIGHUP takes the log level from `reload`. Raises what keeps the daemon from starting or from going on.
    """
    clock = clock or SystemLoopClock()
    conceal = settings.concealment()
    configure_logging(settings.log, conceal)
    assembly = await assemble(settings, clock)
    daemon = assembly.daemon
    notifier = Notifier()
    try:
        me = Self(assembly.holder, settings.registry.shown, settings.server.stall_after_s)
        server = Server(daemon, assembly.store, settings.lease.name, settings.server, me, conceal, clock)
        _heed_signals(daemon, notifier, reload)
        await server.start()
        try:
            _introduce(assembly, settings)
            with FreezingCollector():
                await _run(daemon, notifier, clock)
        finally:
            await server.stop()
    finally:
        notifier.close()
        await assembly.stores.close()
    log.info("stopped")


def _introduce(assembly: Assembly, settings: Settings) -> None:
    lanes = assembly.daemon.lanes
    log.info(
        "starting",
        registry=settings.registry.shown,
        holder=assembly.holder,
        components={lane.name: sorted(lane.tables) for lane in lanes},
    )
    if not lanes:
        log.warning("nobody subscribes: changes are followed and forgotten", file=str(settings.subscriptions))


async def _run(daemon: Daemon, notifier: Notifier, clock: LoopClock) -> None:
    reporting = asyncio.create_task(_report(daemon, notifier, clock), name="systemd")
    try:
        notifier.ready()  # a daemon that stands by has started too
        await daemon.run()
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


async def _report(daemon: Daemon, notifier: Notifier, clock: LoopClock) -> None:
    """From the event loop itself: if that hangs, systemd hears nothing and restarts us."""
    interval = min(notifier.watchdog_interval_s() or _STATUS_INTERVAL_S, _STATUS_INTERVAL_S)
    while True:
        notifier.alive()
        notifier.status(status_line(daemon))
        await clock.sleep(interval)


def status_line(daemon: Daemon) -> str:
    """Such as ``leading; components: 2 live, 1 broken (audit)``."""
    if not daemon.leadership.leads:
        return role(daemon)
    states = Counter(str(shown_state(lane)) for lane in daemon.lanes)
    others = {
        state: [lane.name for lane in daemon.lanes if shown_state(lane) == state] for state in states if state != "live"
    }
    parts = [f"{states['live']} live"] if states["live"] else []
    parts += [f"{len(names)} {state} ({', '.join(names)})" for state, names in others.items()]
    return f"{role(daemon)}; components: {', '.join(parts) or 'none'}"


def _heed_signals(daemon: Daemon, notifier: Notifier, reload: Callable[[], Settings]) -> None:
    loop = asyncio.get_running_loop()

    def stop(name: str) -> None:
        if daemon.stopping:
            log.warning("told to stop again: ending at once", signal=name)
            os._exit(INTERRUPTED)
        log.info("told to stop: finishing what waits", signal=name)
        notifier.stopping()
        daemon.stop()

    def read_level() -> None:
        try:
            level = reload().log.level
        except ConfigError as error:
            log.error("settings can't be read again: the log level stays", error=str(error))
            return
        set_level(level)
        log.info("log level read again", level=level)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, signal.Signals(number).name)
    loop.add_signal_handler(signal.SIGHUP, read_level)
