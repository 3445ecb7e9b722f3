"""The same calls on each backend: one table to compare them by. Times are those of this machine, on loopback."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter

from astha.clock import SystemLoopClock
from astha.settings.groups import TailSettings
from astha.settings.source import SourceSettings
from astha.sources.contract import Gap, Progress, Started
from astha.sources.factory import open_source
from benchmarks.registries import SERVER
from benchmarks.report import Report, percentile
from registry.cache import CachedStore
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.inputs import SegmentDraft
from registry.migrate import migrate
from tests.servers.dynamodb import DynamoServer

BACKENDS = ("sqlite", "postgresql", "dynamodb")

_TOPIC = "orders"
_PARTITIONS = 10
_BULK = 1_000
_IDLE_S = 0.3
"""Before a commit whose way to its event is measured: the source has come to rest."""


async def compare(report: Report, backends: Sequence[str]) -> None:
    for backend in backends:
        with tempfile.TemporaryDirectory() as directory, _url(backend, Path(directory)) as url:
            await asyncio.to_thread(migrate, url)
            store = await open_store(url)
            try:
                await _measure(report, backend, url, store)
            finally:
                await store.close()


@contextmanager
def _url(backend: str, directory: Path) -> Iterator[str]:
    """The URL of an empty database on a server of its own."""
    with ExitStack() as stack:
        if backend == "sqlite":
            yield f"sqlite:///{directory}/registry.db"
        elif backend == "postgresql":
            yield stack.enter_context(EmbeddedPostgres(settings={**SERVER, "wal_level": "logical"})).url("postgres")
        else:
            yield stack.enter_context(DynamoServer(directory)).url("registry")


async def _measure(report: Report, backend: str, url: str, store: MetadataStore) -> None:
    await store.create_topic(_TOPIC, _PARTITIONS)
    base = iter(range(0, 10**12, 10))

    async def times(name: str, call: Callable[[], Awaitable[object]], count: int, what: str) -> None:
        await call()
        samples = [await _timed(call) for _ in range(count)]
        worst = percentile(samples, 0.99) * 1_000
        report.add(
            f"{backend}_{name}_ms", percentile(samples, 0.5) * 1_000, f"median of {count} {what}; p99 {worst:.3g}"
        )

    async def bulk() -> None:
        await store.add_segments([_segment(0, next(base)) for _ in range(_BULK)])

    rounds = report.pick(10, 1)
    seconds = sum([await _timed(bulk) for _ in range(rounds)])
    report.add(
        f"{backend}_bulk_segments_per_s",
        rounds * _BULK / seconds,
        f"add_segments, {_BULK} in a commit, {rounds} commits",
    )
    last = rounds * _BULK * 10
    offsets = iter(range(0, last * 1_000, 7_919))
    find = report.pick(1_000, 50)
    await times("find", lambda: store.find_segment_for_offset(_TOPIC, 0, next(offsets) % last), find, "offsets")
    cached = CachedStore(store)
    await times("cached_get", lambda: cached.get_topic(_TOPIC), report.pick(10_000, 1_000), "get_topic in the cache")
    await times("commit", lambda: store.add_segment(_segment(1, next(base))), report.pick(200, 20), "add_segment")
    lease = await store.take_daemon_lease("benchmark", "one", 60_000)
    assert lease is not None
    await times("lease_renewal", lambda: store.renew_daemon_lease(lease, 60_000), report.pick(200, 20), "renewals")
    await _commit_to_event(report, backend, url, store)


async def _commit_to_event(report: Report, backend: str, url: str, store: MetadataStore) -> None:
    async with _following(url, store) as arrived:
        samples = []
        for number in range(report.pick(50, 8)):
            await asyncio.sleep(_IDLE_S)
            began = perf_counter()
            await store.create_topic(f"event{number}", 1)
            samples.append(await arrived.get() - began)
    worst = max(samples) * 1_000
    report.add(
        f"{backend}_commit_to_event_ms",
        percentile(samples, 0.5) * 1_000,
        f"median of {len(samples)}, from the call of create_topic to its event in this process; most {worst:.3g}",
    )


@asynccontextmanager
async def _following(url: str, store: MetadataStore) -> AsyncIterator[asyncio.Queue[float]]:
    """The times at which transactions arrive at the daemon's source."""
    arrived: asyncio.Queue[float] = asyncio.Queue()
    started = asyncio.Event()
    source = open_source(url, store, SourceSettings(), TailSettings(), SystemLoopClock())

    async def follow() -> None:
        async with aclosing(source.stream(frozenset({"topics"}))) as stream:
            async for batch in stream:
                if isinstance(batch, Started):
                    started.set()
                elif not isinstance(batch, Gap | Progress):
                    arrived.put_nowait(perf_counter())

    following = asyncio.create_task(follow())
    try:
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        yield arrived
    finally:
        following.cancel()
        await asyncio.wait({following})
        await source.close()


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    began = perf_counter()
    await call()
    return perf_counter() - began


def _segment(partition: int, base: int) -> SegmentDraft:
    return SegmentDraft(
        topic=_TOPIC, partition_id=partition, base_offset=base, end_offset=base + 9, record_count=10, size_bytes=1_000,
        s3_bucket="lake", s3_key=f"{_TOPIC}/{partition}",
    )  # fmt: skip
