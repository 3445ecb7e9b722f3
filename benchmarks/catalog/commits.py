"""Commits and loads of both catalogs, with the same requests in turns, and the growth of a commit's cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median

import msgspec

from benchmarks.catalog.appends import Append, Appends
from benchmarks.catalog.client import Client
from benchmarks.lake.iceberg import SCHEMA, sample_file
from benchmarks.report import Report, interleaved, rates
from registry.models import TableFile

GROWTH, QUICK_GROWTH = 1_000, 400  # commits
_BLOCK = 20  # commits of one catalog, then of the other
_COMPARED = 20
"""Commits of an old and of a new table that are compared."""
_MANY_LOADS = 20


class Contest:
    """`clients` are the connections to the catalogs by name."""

    def __init__(self, report: Report, warehouse: Path, clients: dict[str, Client]) -> None:
        self._report = report
        self._warehouse = warehouse
        self._clients = clients
        self._sample = sample_file(warehouse)

    def appends(self, table: str, count: int) -> list[Append]:
        """Each adds one file."""
        appends = Appends(self._warehouse / "bench" / table, SCHEMA)
        return [appends.add([self._file(table, number)]) for number in range(count)]

    def _file(self, table: str, number: int) -> TableFile:
        location = (self._warehouse / "bench" / table).as_uri()
        return msgspec.structs.replace(self._sample, id=number, file_path=f"{location}/data/{number}.parquet")

    def _created(self, client: Client, table: str, appends: Sequence[Append]) -> list[bytes]:
        """Creates a table and returns the requests of its commits."""
        uuid = client.create_table(table, SCHEMA, (self._warehouse / "bench" / table).as_uri())
        return [append.request(uuid) for append in appends]

    def warm_up(self, commits: int) -> None:
        appends = self.appends("warm", commits)
        for name, client in self._clients.items():
            for request in self._created(client, "warm", appends):
                client.commit("warm", request)
            for _ in range(_MANY_LOADS):
                client.load("warm")
            self._report.say(f"{name}: {commits} commits to warm up")

    async def commits(self, rounds: int) -> None:
        appends = self.appends("raced", rounds * _BLOCK)
        requests = {name: self._created(client, "raced", appends) for name, client in self._clients.items()}

        def contestant(name: str) -> Callable[[int], object]:
            async def commit(number: int) -> None:
                for request in requests[name][number * _BLOCK : (number + 1) * _BLOCK]:
                    self._clients[name].commit("raced", request)

            return commit

        seconds = await interleaved(rounds, **{name: contestant(name) for name in self._clients})  # type: ignore[arg-type]
        ours, theirs = rates(_BLOCK, seconds["ours"]), rates(_BLOCK, seconds["reference"])
        self._report.add(
            "commit_vs_reference",
            ours / theirs,
            f"one-file appends per second of one client over Iceberg's reference REST server, same manifests, "
            f"PostgreSQL and disk: {ours:.0f} over {theirs:.0f}; ours also writes the file's row and its event",
            at_least=1.0,
        )

    async def growth(self) -> None:
        """The last commits to a table that has many snapshots, in turns with the first ones to a new table."""
        client, count = self._clients["ours"], self._report.pick(GROWTH, QUICK_GROWTH)
        grown = self._created(client, "grown", self.appends("grown", count))
        fresh = self._created(client, "fresh", self.appends("fresh", _COMPARED))
        for request in grown[:-_COMPARED]:
            client.commit("grown", request)
        early, late = [], []
        for first, last in zip(fresh, grown[-_COMPARED:], strict=True):
            early.append(_seconds(client, "fresh", first))
            late.append(_seconds(client, "grown", last))
        self._report.add(
            "commit_growth",
            median(late) / median(early),
            f"the commits before the {count:,}th over the first {_COMPARED}, in turns, medians, all snapshots kept: "
            f"{_ms(median(late))} over {_ms(median(early))}; means, with a merge of 99 manifests: {_ms(mean(late))} "
            f"over {_ms(mean(early))}",
            at_most=1.5,
        )

    async def loads(self, rounds: int) -> None:
        """Loads the table of `growth`. The reference server gets it by its metadata file."""
        loaded = msgspec.json.decode(self._clients["ours"].load("grown"))
        snapshots = len(loaded["metadata"]["snapshots"])
        self._clients["reference"].close()  # it has been idle, and the server may have closed it
        self._clients["reference"].register_table("grown", loaded["metadata-location"])

        def contestant(name: str) -> Callable[[int], object]:
            async def load(_: int) -> None:
                for _ in range(_MANY_LOADS):
                    self._clients[name].load("grown")

            return load

        seconds = await interleaved(rounds, **{name: contestant(name) for name in self._clients})  # type: ignore[arg-type]
        ours, theirs = rates(_MANY_LOADS, seconds["ours"]), rates(_MANY_LOADS, seconds["reference"])
        self._report.add(
            "load_vs_reference",
            ours / theirs,
            f"loads per second of a table with {snapshots:,} snapshots: {ours:.0f} over {theirs:.0f}",
            at_least=2.0,
        )


def _seconds(client: Client, table: str, request: bytes) -> float:
    started = time.perf_counter()
    client.commit(table, request)
    return time.perf_counter() - started


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
