"""The segment store's figures: a thousand partitions that get ten bytes at a time, and ten thousand; reading what is
cached against decompressing it; how soon a waiting reader has what another process wrote; and records of 1 KB, over raw
PUTs and over Kafka.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.gc_tuning import FreezingCollector
from astha.subscribers.context import ComponentContext, LakeSettings
from benchmarks.registries import age, new_registry
from benchmarks.report import Report, run
from benchmarks.segments.appends import pathological
from benchmarks.segments.reads import warm_reads
from benchmarks.segments.throughput import throughput_figures
from benchmarks.segments.wake import wake_figures
from registry.embedded_postgres import EmbeddedPostgres
from tests.servers.s3 import S3Server

BUCKET = "benchmark"
WAL_MB = 2048  # more than is written between two checkpoints
SERVER = {  # and vacuums as everywhere: the load lasts for minutes
    "shared_buffers": "256MB",
    "min_wal_size": f"{WAL_MB}MB",
    "max_wal_size": "4GB",
}


async def measure(report: Report) -> None:
    with (
        FreezingCollector(),  # as `astha run` and `astha produce` do
        tempfile.TemporaryDirectory(prefix="astha-benchmark-") as name,
        EmbeddedPostgres(settings=SERVER) as server,
        S3Server(Path(name) / "s3") as s3,
    ):
        await warm_reads(report, Path(name))
        age(server, WAL_MB)
        s3.create_bucket(BUCKET)
        for partitions, suffix in ((1_000, ""),) if report.quick else ((1_000, ""), (10_000, "_10k")):
            url, store = await new_registry(server, f"segments{suffix}")
            lake = LakeSettings(warehouse=f"s3://{BUCKET}/lake{suffix}", s3=s3.settings)
            around = ComponentContext(store, SystemLoopClock(), SecretStr(url), lake)
            try:
                if not suffix:
                    await wake_figures(report, around)
                    await throughput_figures(report, around, Path(name))
                appends = report.pick(1_000_000, 30_000)  # at a given rate: less is all that can be quicker
                await pathological(report, around, partitions, appends // partitions, suffix)
            finally:
                await store.close()


if __name__ == "__main__":
    sys.exit(run("segments", measure))
