"""Compactors that are killed: each in a process of its own, forked from one that has all modules loaded.

``python -m tests.faults.crash_compactors`` with JSON. Each compacts its own partition, and is killed by SIGKILL
when it reaches its step; one more dies during a merge, with its file half written.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import msgspec

from astha.clock import SystemLoopClock
from astha.subscribers import LakeSettings
from components.compactor.execution.job import CompactionJob
from components.compactor.execution.job_context import JobContext, Step
from components.compactor.merge import MergeResult, MergeTask
from components.compactor.planning.compaction_spec import CompactionSpec
from components.lib.lake.storage import local_files
from components.lib.lake.storage.locations import parse
from components.lib.lake.storage.objects import Objects
from components.lib.lake.storage.output_streams import Writable
from registry.connect import open_store
from registry.engines import StoreSettings
from tests.doubles.merging import LocalExecutor, naive_merge

STEPS = [*list(Step)[1:], "half a file"]


class CrashRequest(msgspec.Struct):
    """What the processes are to do."""

    url: str
    tables: list[int]  # one for each of `STEPS`


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_a_file(task: MergeTask) -> MergeResult:
    def write(sink: Writable) -> None:
        sink.write(b"PAR1")
        die()

    local_files.write(parse(task.outputs[0]).path, write)
    raise AssertionError("it should be dead")


async def compact(order: CrashRequest, table_id: int, step: str) -> None:
    store = await open_store(order.url, settings=StoreSettings(busy_timeout_s=60))
    table = await store.get_table_by_id(table_id)
    assert table is not None

    async def on_step(found: Step) -> None:
        if found == step:
            die()

    job = CompactionJob(
        CompactionSpec(
            table=table,
            partition_path="",
            groups=(tuple(await store.list_files(table_id)),),
            versions=tuple(reversed(await store.list_table_metadata(table_id))),
            lake=LakeSettings(),
        ),
        JobContext(
            store=store,
            executor=LocalExecutor(half_a_file if step == "half a file" else naive_merge),
            objects=Objects(LakeSettings()),
            clock=SystemLoopClock(),
            owner=f"crashing {step}",
            on_step=on_step,
        ),
    )
    await job.run()


def main(order: CrashRequest) -> None:
    for table_id, step in zip(order.tables, STEPS, strict=True):
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(compact(order, table_id, step))
            finally:
                os._exit(1)  # it should have been killed
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit(f"the compactor that was to die at {step!r} ended by itself: {status}")


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=CrashRequest))
