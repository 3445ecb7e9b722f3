"""The cost of asynchronous registration: one writer registers 1,000 files one after the other."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time

import msgspec

from astha.clock import SystemLoopClock
from benchmarks.registries import SERVER, new_registry
from benchmarks.report import Report, run
from components.lib.lake.registration.registrar import Registrar
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.inputs import FileDraft, Registration, TableDraft
from registry.json_text import JsonText, to_json_text
from registry.migrate import migrate
from registry.models import ColumnStats

REGISTRATIONS = 1_000
ALONE = 100  # of those that are registered one by one, which takes longer
OWNER = "benchmark"
COLUMNS = to_json_text(
    {str(field): ColumnStats(10_000, 0, None, 80_000, "AAAAAAAAAAA=", "/////////38=") for field in range(1, 11)}
)


class Sample(msgspec.Struct, frozen=True):
    """Returns microseconds per registration."""

    total: float  # until all are durable
    loop: float  # of the event loop's own time: what the writers in it lose
    groups: int


async def asynchronously(store: MetadataStore, table_id: int, name: str) -> Sample:
    registrations = await _announced(store, table_id, name, REGISTRATIONS)
    async with Registrar(store, SystemLoopClock()) as registrar:
        started, busy = perf_counter(), thread_time()
        results = []
        for registration in registrations:
            results.append(await registrar.register(registration))
            await asyncio.sleep(0)  # where a writer would write its next file
        await asyncio.gather(*results)
        each = 1e6 / REGISTRATIONS
        took, busy = (perf_counter() - started) * each, (thread_time() - busy) * each
        return Sample(took, busy, registrar.statistics.groups)


async def one_by_one(store: MetadataStore, table_id: int, name: str) -> float:
    registrations = await _announced(store, table_id, name, ALONE)
    started = perf_counter()
    for registration in registrations:
        await store.register_files([registration])
    return (perf_counter() - started) * 1e6 / ALONE


async def registration_figures(report: Report) -> None:
    with tempfile.TemporaryDirectory() as directory, EmbeddedPostgres(settings=SERVER) as server:
        url = f"sqlite:///{Path(directory) / 'registry.db'}"
        await asyncio.to_thread(migrate, url)
        await _measure(report, "sqlite", await open_store(url))
        await _measure(report, "postgres", (await new_registry(server, "registration"))[1])


async def _measure(report: Report, backend: str, store: MetadataStore) -> None:
    table = await store.create_table("db", "t", "file:///lake/t", TableDraft(schema=JsonText("{}")))
    samples, alone = [], []
    for number in range(report.pick(8, 4)):
        alone.append(await one_by_one(store, table.id, f"alone-{number}"))
        samples.append(await asynchronously(store, table.id, f"{number}"))
    await store.close()
    samples, alone = samples[1:], alone[1:]  # the first round warms up
    total, single = median(sample.total for sample in samples), median(alone)
    groups = median(sample.groups for sample in samples)
    report.add(
        f"registration_us_{backend}", total,
        f"{REGISTRATIONS} registrations of one file, asynchronous, in {groups:g} groups: microseconds each until "
        f"durable; {single:.0f} one by one",
    )  # fmt: skip
    report.add(
        f"registration_loop_us_{backend}", median(sample.loop for sample in samples),
        "of these, on the event loop that the writers share",
    )  # fmt: skip


async def _announced(store: MetadataStore, table_id: int, name: str, count: int) -> list[Registration]:
    paths = [f"file:///lake/t/{name}/{number}.parquet" for number in range(count)]
    await store.record_intents(paths, purpose=f"insert {table_id}", owner=OWNER)
    return [
        Registration(
            table_id=table_id,
            files=[
                FileDraft(
                    file_path=path, file_size=80_000, row_count=10_000, schema_version=1, checksum="crc32:1",
                    column_stats=COLUMNS,
                )
            ],
            intents_of=OWNER,
        )
        for path in paths
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(run("registration", registration_figures))
