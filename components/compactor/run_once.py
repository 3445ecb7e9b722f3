"""Compaction by hand, in this process: with or without a daemon, which the registry's claims keep apart from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import TypeAlias
from uuid import uuid4

import structlog

from components.compactor.cli_context import Desk
from components.compactor.execution.job import Job, Workshop
from components.compactor.execution.outcome import Outcome
from components.compactor.planning.compaction_spec import Assignment
from components.compactor.planning.planner import Planned, Planning, Wish
from components.compactor.spark.executor_protocol import Executor
from components.lib.lake.storage.objects import Objects
from components.lib.lake.table_lookup import full_name
from registry.errors import NotFound
from registry.models import LakeTable, TableStats

log = structlog.get_logger(__name__)

Progress: TypeAlias = Callable[[list[Job]], None]

_LOOK_S = 0.2


async def plan_table(desk: Desk, table: LakeTable, partition: str | None, wish: Wish) -> list[tuple[str, Planned]]:
    """Of each partition that has files, or of the one named. NotFound if the table never had that one."""
    chosen = desk.component_settings()
    planning = Planning(desk.store, desk.clock, desk.settings.lake, chosen.policy, chosen.memory_bytes)
    known = await desk.store.get_statistics(table.id)
    if partition is not None and partition not in {one.partition_path for one in known}:
        raise NotFound(f"{full_name(table)} has no partition {partition!r}: {_nearest(partition, known)}")
    paths = [one.partition_path for one in known if one.file_count > 1]
    found = []
    for path in paths if partition is None else [partition]:
        planned = await planning.plan(table.id, path, wish)
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
    desk: Desk, assignments: list[Assignment], progress: Progress, executor: Executor | None = None
) -> list[Outcome]:
    """All of them, as many at once as the component's settings say. Cancelled, it leaves nothing."""
    chosen = desk.component_settings()
    async with _opened(desk, executor) as opened:
        workshop = Workshop(
            store=desk.store,
            executor=opened,
            objects=Objects(desk.settings.lake),
            clock=desk.clock,
            owner=f"astha compaction run {uuid4().hex[:8]}",
            limits=chosen.limits,
        )
        jobs = [Job(assignment, workshop) for assignment in assignments]
        room = asyncio.Semaphore(chosen.jobs)

        async def run(job: Job) -> Outcome:
            async with room:
                return await job.run()

        tasks = [asyncio.create_task(run(job)) for job in jobs]
        try:
            while not all(task.done() for task in tasks):
                progress(jobs)
                await asyncio.wait(tasks, timeout=_LOOK_S)
            progress(jobs)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        return [task.result() for task in tasks]


@asynccontextmanager
async def _opened(desk: Desk, given: Executor | None) -> AsyncIterator[Executor]:
    if given is not None:
        yield given
        return
    from components.compactor.spark.executor import open_executor

    executor = open_executor(desk.component_settings().spark, desk.settings.lake, desk.settings.concealment())
    try:
        yield executor
    finally:
        await executor.close()
