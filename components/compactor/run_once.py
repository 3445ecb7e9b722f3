"""`astha compaction run`: compaction in this process, beside a daemon or without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import TypeAlias
from uuid import uuid4

import structlog

from astha.tasks import cancel_and_wait
from components.compactor.cli_context import CompactionCliContext
from components.compactor.execution.job import CompactionJob
from components.compactor.execution.job_context import JobContext
from components.compactor.execution.outcome import JobOutcome
from components.compactor.planning.compaction_spec import CompactionSpec
from components.compactor.planning.planner import CompactionRequest, PlannedJob, Planner
from components.compactor.spark.executor_protocol import Executor
from components.lib.lake.storage.objects import Objects
from components.lib.lake.table_lookup import full_name
from registry.errors import NotFound
from registry.models import LakeTable, TableStats

log = structlog.get_logger(__name__)

ShowProgress: TypeAlias = Callable[[list[CompactionJob]], None]

_SHOW_EVERY_S = 0.2


async def plan_table(
    context: CompactionCliContext, table: LakeTable, partition: str | None, request: CompactionRequest
) -> list[tuple[str, PlannedJob]]:
    """Plans each partition with files, or the one named. Raises `NotFound` if the table never had that one."""
    chosen = context.component_settings()
    planner = Planner(context.store, context.clock, context.settings.lake, chosen.policy, chosen.memory_bytes)
    known = await context.store.get_statistics(table.id)
    if partition is not None and partition not in {one.partition_path for one in known}:
        raise NotFound(f"{full_name(table)} has no partition {partition!r}: {_nearest(partition, known)}")
    paths = [one.partition_path for one in known if one.file_count > 1]
    found = []
    for path in paths if partition is None else [partition]:
        planned = await planner.plan(table.id, path, request)
        if planned is not None:
            found.append((path, planned))
    return found


def _nearest(partition: str, known: list[TableStats]) -> str:
    names = [one.partition_path for one in known if one.file_count]
    if not names:
        return "it has no files"
    if names == [""]:
        return "it is not partitioned; leave --partition out"
    likely = get_close_matches(partition, names, n=3, cutoff=0.3) or names[:3]
    return f"it has {len(names):,}, such as {', '.join(likely)}: `astha compaction explain` lists them"


async def run_jobs(
    context: CompactionCliContext, specs: list[CompactionSpec], progress: ShowProgress, executor: Executor | None = None
) -> list[JobOutcome]:
    """Runs the jobs, as many at a time as the component's settings allow. If cancelled, leaves nothing."""
    chosen = context.component_settings()
    async with _opened(context, executor) as opened:
        job_context = JobContext(
            store=context.store,
            executor=opened,
            objects=Objects(context.settings.lake),
            clock=context.clock,
            owner=f"astha compaction run {uuid4().hex[:8]}",
            limits=chosen.limits,
        )
        jobs = [CompactionJob(spec, job_context) for spec in specs]
        room = asyncio.Semaphore(chosen.jobs)

        async def run(job: CompactionJob) -> JobOutcome:
            async with room:
                return await job.run()

        tasks = [asyncio.create_task(run(job)) for job in jobs]
        try:
            while not all(task.done() for task in tasks):
                progress(jobs)
                await asyncio.wait(tasks, timeout=_SHOW_EVERY_S)
            progress(jobs)
        except BaseException:
            await cancel_and_wait(*tasks)
            raise
        return [task.result() for task in tasks]


@asynccontextmanager
async def _opened(context: CompactionCliContext, given: Executor | None) -> AsyncIterator[Executor]:
    if given is not None:
        yield given
        return
    from components.compactor.spark.executor import open_executor

    executor = open_executor(context.component_settings().spark, context.settings.lake, context.settings.redactor())
    try:
        yield executor
    finally:
        await executor.close()
