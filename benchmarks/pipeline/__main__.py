"""The daemon's figures: rate against pg_recvlogical and Debezium, latency against a bare reader, isolation, recovery.

Every reader drains the same WAL through a slot of its own. Debezium is fetched on demand and takes minutes, so a quick
run leaves it out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks.pipeline.clients import clients
from benchmarks.pipeline.debezium_peer import drains_against_debezium, latency_against_debezium
from benchmarks.pipeline.latency import Paced, cores, nothing, p50, p99, pace, paced
from benchmarks.pipeline.readers import DaemonReader, Drained, daemon, drain_by_daemon, drain_by_recvlogical
from benchmarks.pipeline.recovery import recovery_figures
from benchmarks.pipeline.refresh import refresh_figures
from benchmarks.pipeline.wal import Wal, prepare
from benchmarks.report import Report, run
from registry.embedded_postgres import EmbeddedPostgres

SERVER = {"max_wal_size": "4GB", "shared_buffers": "256MB"}
WATCHERS, SCRAPERS = 200, 10
DASHBOARDS = 30  # the default limit is 32
GOALS = {(1_000, "tcp"): 1.0, (1_000, "unix"): 0.6, (1, "tcp"): 1.0, (1, "unix"): 0.9}


def rates(report: Report, server: EmbeddedPostgres) -> None:
    grown: list[float] = []
    for size, rows in ((1_000, report.pick(300_000, 40_000)), (1, report.pick(60_000, 8_000))):
        wal = Wal(server, f"rate{size}")
        wal.write(rows, size)
        for transport in ("tcp", "unix"):
            ours, theirs = [], []
            for _ in range(report.pick(4, 1)):
                theirs.append(drain_by_recvlogical(wal, unix=transport == "unix"))
                ours.append(drain_by_daemon(wal, unix=transport == "unix"))
            grown += [drained.details["grown_mb"] for drained in ours]
            name = f"rate_vs_pg_recvlogical_{transport}" + ("" if size == 1_000 else "_tx1")
            report.add(
                name,
                median(drained.rate for drained in ours) / median(drained.rate for drained in theirs),
                f"{rows:,} inserts in transactions of {size:,}, typed, to four lanes: {_cost(ours)}; "
                f"pg_recvlogical -f /dev/null: {_cost(theirs)}",
                at_least=GOALS[size, transport],
            )
        if size == 1_000 and not report.quick:
            drains_against_debezium(report, wal)
        wal.close()
    report.add("rss_growth_mb", max(grown), "peak RSS while draining, over the daemon before it starts", at_most=64)


def _cost(drains: list[Drained]) -> str:
    rate = median(drained.rate for drained in drains)
    cpu = median(drained.cpu for drained in drains)
    walsender = median(drained.walsender_cpu for drained in drains)
    each = cpu / drains[0].events * 1e6
    return f"{rate:,.0f}/s, CPU {cpu:.2f} s ({each:.1f} us an event) + walsender {walsender:.2f} s"


async def latency(report: Report, server: EmbeddedPostgres) -> None:
    wal = Wal(server, "latency")
    seconds = report.pick(12, 2)
    bare: list[Paced] = []
    whole: list[Paced] = []
    broken: list[Paced] = []
    for _ in range(report.pick(3, 1)):
        bare.append(await paced(wal, seconds, lambda slot: daemon(wal, slot, bare=True)))
        whole.append(await paced(wal, seconds, lambda slot: daemon(wal, slot)))
        broken.append(await paced(wal, seconds, lambda slot: daemon(wal, slot, hung=1)))
    what = f"commit to on_event of the last of four, {pace(whole)} over TCP"
    report.add("latency_p50_ms", p50(whole), what, at_most=1)
    report.add("latency_p99_ms", p99(whole), what, at_most=5)
    against_bare = f"{p99(whole):.2f} ms over {p99(bare):.2f} ms without lanes"
    report.add("latency_p99_vs_bare_reader", p99(whole) / p99(bare), against_bare, at_most=1.5)
    with_hung = f"one of four lanes hung: {p99(broken):.2f} ms over {p99(whole):.2f} ms without"
    report.add("isolation_p99_ratio", p99(broken) / p99(whole), with_hung, at_most=2)
    if not report.quick:
        await latency_against_debezium(report, wal)
    wal.close()


class Load:
    """Clients beside a reader, and what they received."""

    def __init__(self, **clients: int) -> None:
        self.runs: list[Paced] = []
        self._clients = clients
        self._received: list[dict[str, Any]] = []

    @contextmanager
    def beside(self, reader: DaemonReader) -> Iterator[None]:
        url = reader.wait_until_ready()["url"]
        with clients(url, **self._clients) as received:
            yield
        self._received.append(received)

    def received(self, name: str) -> float:
        return float(median(each[name] for each in self._received))


async def latency_with_clients(report: Report, server: EmbeddedPostgres) -> None:
    """Measures latency without clients of the HTTP server, with many that watch events and scrape metrics, and with
    open dashboards.
    """
    wal = Wal(server, "clients")
    seconds = report.pick(12, 2)
    alone: list[Paced] = []
    load, open_dashboards = Load(watchers=WATCHERS, scrapers=SCRAPERS), Load(dashboards=DASHBOARDS)
    beside = load.runs
    for number in range(report.pick(4, 1)):
        turns = [(alone, nothing), (beside, load.beside), (open_dashboards.runs, open_dashboards.beside)]
        for runs, around in turns if number % 2 else reversed(turns):
            runs.append(await paced(wal, seconds, lambda slot: daemon(wal, slot, served=True), beside=around))
    scrapes, megabytes, cpu = (load.received(name) for name in ("scrapes", "bytes", "cpu"))
    report.add(
        "clients_p99_ratio",
        p99(beside) / p99(alone),
        f"{WATCHERS} watchers and {SCRAPERS} scrapers: {p99(beside):.2f} ms over {p99(alone):.2f} ms without (p50 "
        f"{p50(beside):.2f} over {p50(alone):.2f}), {pace(beside)}; the daemon took {cores(beside):.2f} cores, "
        f"{cores(alone):.2f} without; the clients read {megabytes / 1e6:,.0f} MB and {scrapes:,.0f} scrapes "
        f"in {cpu:.1f} s of CPU",
        at_most=1.5,
    )
    shown = open_dashboards.runs
    report.add(
        "dashboards_p99_ratio",
        p99(shown) / p99(alone),
        f"{DASHBOARDS} open dashboards: {p99(shown):.2f} ms over {p99(alone):.2f} ms without (p50 {p50(shown):.2f} "
        f"over {p50(alone):.2f}), {pace(shown)}; the daemon took {cores(shown):.2f} cores, {cores(alone):.2f} without; "
        f"the dashboards read {open_dashboards.received('bytes') / 1e3:,.0f} kB",
        at_most=1.5,
    )
    wal.close()


async def measure(report: Report) -> None:
    with EmbeddedPostgres(settings=SERVER) as server:
        prepare(server)
        rates(report, server)
        await latency(report, server)
        await latency_with_clients(report, server)
        await refresh_figures(report, server)
    await recovery_figures(report)


if __name__ == "__main__":
    sys.exit(run("pipeline", measure))
