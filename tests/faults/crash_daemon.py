"""Components of a daemon that kills itself, with SIGKILL, when a compaction on real Spark comes to a step.

`use: tests.faults.crash_daemon:create_compactor`, and `:create_updater`. The step is in the environment, which the JVM
and its workers inherit: what happens in a worker is told by the worker, which kills the daemon from there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pyspark import SparkContext

from astha.events import Event, Operation
from astha.subscribers import ComponentContext
from components.compactor.execution.job_context import Step
from components.compactor.merge import MergeResult, MergeTask, merge
from components.compactor.settings import CompactorSettings
from components.compactor.spark import worker_daemon, worker_lease
from components.compactor.spark.executor import SparkExecutor
from components.compactor.subscriber import Compactor
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.subscriber import IcebergUpdater
from components.lib.lake.storage import local_files
from components.lib.lake.storage.output_streams import Writable
from components.lib.spark.classic import ClassicSession
from components.lib.spark.jvm import Jvm
from components.lib.spark.session import SparkJob
from registry.forwarding import ForwardingStore
from registry.inputs import FileDraft
from registry.models import FileOperation, Row, TableDeleteFile, TableFile
from registry.private_files import PRIVATE, Modes

T = TypeVar("T")

STEP = "DOOMED_AT"
_PID = "DOOMED_PID"
_LONGEST_S = 60.0


class Death(StrEnum):
    """In the order in which a compaction comes by."""

    DECIDED = "decided"
    PLANNED = "planned"
    CLAIMED = "claimed"
    ANNOUNCED = "names announced"
    JVM_STARTING = "a JVM that starts"
    JVM_STARTED = "a JVM without a session"
    TASK_SENT = "a worker that asks whether it may begin"
    HALF_A_FILE = "half a file"
    ALL_WRITTEN = "all files written"
    ANSWERED = "before the comparison"
    COMPARED = "before the swap"
    SWAPPED = "swapped"
    TOLD = "before the end is told"
    UPDATING = "before Iceberg's commit"
    UPDATED = "after Iceberg's commit"


needs_registry_url = True

_STEPS = {
    Step.PLAN: Death.DECIDED,
    Step.CLAIM: Death.PLANNED,
    Step.INTENTS: Death.CLAIMED,
    Step.MERGE: Death.ANNOUNCED,
    Step.COMPARE: Death.ANSWERED,
    Step.SWAP: Death.COMPARED,
    Step.FINISH: Death.TOLD,
}


def reach(death: Death) -> None:
    if os.environ.get(STEP) == death:
        os.kill(int(os.environ[_PID]), signal.SIGKILL)
        time.sleep(_LONGEST_S)  # here only if this is a worker, which is to be ended by the death of its daemon


async def reached(step: Step) -> None:
    reach(_STEPS[step])


def merge_fatally(task: MergeTask) -> MergeResult:
    """In a worker."""
    if os.environ.get(STEP) == Death.HALF_A_FILE:
        local_files.write = write_half
    result = merge(task)
    reach(Death.ALL_WRITTEN)
    return result


def write_half(path: Path, fill: Callable[[Writable], T], modes: Modes = PRIVATE) -> T:
    """The worker goes with its daemon, or it would tidy up."""
    with path.with_name(f"{path.name}.partial").open("wb") as sink:
        fill(sink)
        sink.truncate(sink.tell() // 2)
        os.kill(int(os.environ[_PID]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it should be dead")


class DoomedSession(ClassicSession):
    def run(self, job: SparkJob) -> bytes:
        if "shop." in job.description:  # not the task that looks whether workers are there
            worker_lease._send = partial(say_go, worker_lease._send)
        return super().run(job)

    def _watch(self, jvm: Jvm) -> None:
        reach(Death.JVM_STARTING)
        super()._watch(jvm)

    def _connect(self, port: int, secret: str) -> SparkContext:
        reach(Death.JVM_STARTED)
        return super()._connect(port, secret)


async def say_go(say: Callable[..., Any], writer: object, words: str) -> None:
    reach(Death.TASK_SENT)
    await say(writer, words)


class DoomedStore(ForwardingStore):
    """The compactor's."""

    has_swapped = False

    async def swap_files(
        self,
        table_id: int,
        old: Sequence[TableFile],
        new: Sequence[FileDraft],
        *,
        operation_id: str,
        operation: FileOperation = "compaction",
        intents_of: str | None = None,
        seen_deletes: Sequence[TableDeleteFile] = (),
        removed_deletes: Sequence[TableDeleteFile] = (),
    ) -> list[TableFile]:
        DoomedStore.has_swapped = True
        found = await super().swap_files(
            table_id,
            old,
            new,
            operation_id=operation_id,
            operation=operation,
            intents_of=intents_of,
            seen_deletes=seen_deletes,
            removed_deletes=removed_deletes,
        )
        reach(Death.SWAPPED)
        return found


class DoomedUpdater(IcebergUpdater):
    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        removed = any(
            event.operation is Operation.DELETE and isinstance(event.data, TableFile)
            for events in transactions
            for event in events
        )
        ours = removed and DoomedStore.has_swapped  # and not that of a daemon before this one, come again
        if ours:
            reach(Death.UPDATING)
        await super().on_transactions(transactions)
        if ours:
            reach(Death.UPDATED)


def create_compactor(settings: Mapping[str, Any], context: ComponentContext) -> Compactor:
    os.environ[_PID] = str(os.getpid())
    chosen = CompactorSettings.model_validate(dict(settings))
    around = ComponentContext(DoomedStore(context.store), context.clock, context.registry_url, context.lake)
    return Compactor(
        chosen,
        around,
        lambda: SparkExecutor(chosen.spark, merge_fatally, partial(DoomedSession, worker_daemon=worker_daemon.MODULE)),
        reached,
    )


def create_updater(settings: Mapping[str, Any], context: ComponentContext) -> IcebergUpdater:
    return DoomedUpdater(UpdaterSettings.model_validate(dict(settings)), context)
