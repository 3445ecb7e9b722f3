"""A daemon with the Kafka sink as its only component, in a process of its own: it drains a slot, and ends."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import structlog
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.daemon import Daemon, DaemonSettings, NamedSubscriber
from astha.gc_tuning import FreezingCollector
from astha.leadership import Leadership, LeaseSettings
from astha.sources.postgres.source import PostgresSource, PostgresSourceSettings
from astha.subscribers.context import ComponentContext, LakeSettings
from astha.subscribers.lane_policy import LanePolicy
from benchmarks.pipeline.child import TABLES
from benchmarks.processes import memory_mb
from components.kafka_sink import create
from components.kafka_sink.subscriber import KafkaSink
from registry.connect import open_store
from registry.contract import MetadataStore

COMPONENT = "kafka_sink"
_LOOK_S = 0.005
_QUEUE_BYTES = 1 << 30


class SinkJob(msgspec.Struct, frozen=True):
    url: str
    slot: str
    sink: dict[str, Any]  # its settings
    expect: int  # records


def serve(job: SinkJob, parent: Connection) -> None:
    """The process's main function. Sends what it cost when the broker has acknowledged all records."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    with FreezingCollector():  # as `astha run` does
        asyncio.run(_run(job, parent))


async def _run(job: SinkJob, parent: Connection) -> None:
    store, clock = await open_store(job.url), SystemLoopClock()
    sink = _sink(job, store)
    source = PostgresSource(job.url, store, PostgresSourceSettings(slot=job.slot), clock)
    leadership = Leadership(store, LeaseSettings(), f"benchmark {time.time_ns()}", clock)
    # The slot has more than a lane holds by default, and the source is faster than any sink: its circuit would open.
    policy = LanePolicy(max_events=2 * job.expect, max_bytes=_QUEUE_BYTES)
    daemon = Daemon(store, source, [NamedSubscriber(COMPONENT, sink, policy)], leadership, DaemonSettings(), clock)
    cpu = time.process_time()
    running = asyncio.create_task(daemon.run())
    while _acknowledged(sink) < job.expect:
        await asyncio.sleep(_LOOK_S)
        if running.done():
            running.result()
    parent.send({"last_at": time.time(), "cpu": time.process_time() - cpu, "peak_mb": memory_mb()[1]})
    daemon.stop()
    await running
    await store.close()


def _sink(job: SinkJob, store: MetadataStore) -> KafkaSink:
    context = ComponentContext(
        store, SystemLoopClock(), SecretStr(job.url), LakeSettings(), component=COMPONENT, tables=TABLES
    )
    return create(job.sink, context)


def _acknowledged(sink: KafkaSink) -> float:
    return next(metric.value for metric in sink.metrics() if metric.name == "records")
