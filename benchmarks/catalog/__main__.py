"""The REST catalog's figures: commits and loads beside Iceberg's own reference server, what a commit costs after many
others, and how soon it is an event and a decision.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.catalog.client import Client
from benchmarks.catalog.commits import Contest
from benchmarks.catalog.latency import latency_figures
from benchmarks.catalog.servers import our_catalog, reference_catalog
from benchmarks.registries import SERVER, new_registry
from benchmarks.report import Report, run
from registry.embedded_postgres import EmbeddedPostgres


async def measure(report: Report) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="astha-benchmark-")))
        warehouse = directory / "warehouse"
        warehouse.mkdir()
        server = stack.enter_context(EmbeddedPostgres(settings=SERVER))
        url, store = await new_registry(server, "registry")
        try:
            ours = stack.enter_context(our_catalog(url, warehouse))
            reference = stack.enter_context(reference_catalog(server, directory / "reference", warehouse))
            clients = {"ours": Client(ours), "reference": Client(reference)}
            for client in clients.values():
                client.create_namespace()
            contest = Contest(report, warehouse, clients)
            contest.warm_up(report.pick(400, 100))
            await contest.commits(report.pick(21, 6))
            await contest.growth()
            await contest.loads(report.pick(11, 4))
            await latency_figures(report, url, store, ours, warehouse)
        finally:
            await store.close()


if __name__ == "__main__":
    sys.exit(run("REST catalog", measure))
