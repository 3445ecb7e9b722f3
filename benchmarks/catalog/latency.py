"""Time from the moment at which an engine's commit returns to the events and the decision that follow from it.

The client is a process of its own, and so is the catalog. The daemon runs in this one, with a component that records
its events, and the compactor, which decides and merges nothing. Each commit adds the files that make one partition
worth compacting.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.events import Event
from astha.subscribers import ComponentContext, LakeSettings
from benchmarks.catalog.appends import Appends
from benchmarks.catalog.client import Client
from benchmarks.compaction.data import UNSORTED
from benchmarks.compaction.decisions import Never
from benchmarks.compaction.lake import running
from benchmarks.lake.iceberg import sample_file
from benchmarks.report import Report, percentile
from components.compactor.settings import CompactorSettings
from components.compactor.subscriber import Compactor
from registry.contract import ConsistentRead, MetadataStore
from registry.models import Row, TableFile

RATE = 20  # commits per second
TABLE = "watched"
_WARM_UP = 20  # commits that don't count
_FILES = 5  # per commit: the fewest that are compacted
_LIMIT_S = 120.0


class Recorder:
    """Records when the last file of each commit arrived."""

    subscribed_tables = frozenset({TableFile.table})

    def __init__(self) -> None:
        self.at_ns: dict[int, int] = {}

    async def on_event(self, event: Event[Row]) -> None:
        for number in _commits([event]):
            self.at_ns[number] = time.monotonic_ns()

    async def on_health(self) -> bool:
        return True

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        return


class Decider(Compactor):
    """Records when each commit was evaluated: a decision is made before `on_transaction` returns."""

    at_ns: dict[int, int]

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        await super().on_transaction(events)
        for number in _commits(events):
            self.at_ns[number] = time.monotonic_ns()

    @property
    def decisions(self) -> float:
        return sum(measure.value for measure in self.metrics() if measure.name == "decisions")


def _commits(events: Iterable[Event[Row]]) -> set[int]:
    """Returns the numbers of the commits that added these files."""
    return {int(event.data.file_name.split("-")[0]) for event in events if isinstance(event.data, TableFile)}


async def latency_figures(report: Report, url: str, store: MetadataStore, catalog: str, warehouse: Path) -> None:
    commits = report.pick(400, 100) + _WARM_UP
    requests = await asyncio.to_thread(_requests, catalog, warehouse, commits)
    around = ComponentContext(store, SystemLoopClock(), SecretStr(url), LakeSettings(warehouse=str(warehouse)))
    events, compactor = Recorder(), Decider(CompactorSettings(jobs=1), around, Never)
    compactor.at_ns = {}
    async with running(url, store, {"events": events, "compactor": compactor}):
        returned_ns = await asyncio.to_thread(_committed, catalog, requests)
        deadline = time.monotonic() + _LIMIT_S
        while (seen := min(len(events.at_ns), len(compactor.at_ns))) < commits:
            await asyncio.sleep(0.05)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{seen} of {commits} commits have arrived")
        if compactor.decisions < commits:
            raise RuntimeError(f"{compactor.decisions:.0f} decisions for {commits} commits")
    to_event, to_decision = (
        [(at_ns[number] - returned_ns[number]) / 1e6 for number in range(_WARM_UP, commits)]
        for at_ns in (events.at_ns, compactor.at_ns)
    )
    what = (
        f"from the commit's response in the client to on_event of its last file (negative: the event was first), "
        f"{RATE} commits/s of {_FILES} files"
    )
    report.add("external_commit_to_event_ms_p50", percentile(to_event, 0.5), what, at_most=5)
    report.add("external_commit_to_event_ms_p99", percentile(to_event, 0.99), what, at_most=20)
    what = f"from the response to the decision to compact; median {percentile(to_decision, 0.5):.1f} ms"
    report.add("external_commit_to_decision_ms_p99", percentile(to_decision, 0.99), what, at_most=50)


def _requests(catalog: str, warehouse: Path, commits: int) -> list[bytes]:
    location = warehouse / "bench" / TABLE
    client = Client(catalog)
    uuid = client.create_table(TABLE, UNSORTED, location.as_uri())
    client.close()
    sample, appends = sample_file(warehouse, UNSORTED), Appends(location, UNSORTED)
    return [
        appends.add(
            [
                msgspec.structs.replace(
                    sample,
                    file_path=f"{location.as_uri()}/data/region={number}/{number}-{file}.parquet",
                    partition_path=f"region={number}",
                )
                for file in range(_FILES)
            ]
        ).request(uuid)
        for number in range(commits)
    ]


def _committed(catalog: str, requests: list[bytes]) -> list[int]:
    """Returns when each commit returned, in nanoseconds of the machine's monotonic clock."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    client = context.Process(target=_commit, args=(catalog, requests, theirs), daemon=True)
    client.start()
    theirs.close()
    try:
        returned: list[int] = ours.recv()
    except EOFError:
        raise RuntimeError("the client has failed") from None
    finally:
        client.join()
    return returned


def _commit(catalog: str, requests: list[bytes], parent: Connection) -> None:
    client, returned = Client(catalog), []
    begun = time.monotonic()
    for number, request in enumerate(requests):
        time.sleep(max(0.0, begun + number / RATE - time.monotonic()))
        client.commit(TABLE, request)
        returned.append(time.monotonic_ns())
    parent.send(returned)
