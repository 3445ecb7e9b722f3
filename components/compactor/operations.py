"""Operations of the running compactor: compact a table now, explain its decisions, show the progress of jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec
import structlog

from astha.subscribers import BackgroundTasks, LoopClock, MetadataStore, OperationRefused, RegistryError
from components.compactor.execution.job import CompactionJob
from components.compactor.execution.running_jobs import RunningJobs
from components.compactor.explain import explain
from components.compactor.planning.planner import CompactionRequest, Planner
from components.compactor.scheduling.policy import CompactionPolicy, PolicyProblem
from components.compactor.spark.executor_protocol import ReportsTasks
from components.lib.lake.table_lookup import find_table, full_name
from registry.models import LakeTable

log = structlog.get_logger(__name__)

OPERATIONS = frozenset({"compact", "explain", "progress"})

_MAX_EXPLAINED_FILES = 200_000
_MAX_PARTITIONS = 500
"""Partitions that an explanation lists, those that run or wait first."""


class CompactorOperations:
    def __init__(
        self,
        store: MetadataStore,
        clock: LoopClock,
        planner: Planner,
        policy: CompactionPolicy,
        tasks: BackgroundTasks,
    ) -> None:
        self._store = store
        self._clock = clock
        self._planner = planner
        self._policy = policy
        self._tasks = tasks

    async def compact(self, jobs: RunningJobs, name: str, partition: str | None) -> object:
        """Begins to merge every partition with two or more small files, one after the other, as
        `astha compaction run` does. The journal has the outcomes.
        """
        table = await find_table(self._store, name)
        known = [one.partition_path for one in await self._store.get_statistics(table.id) if one.file_count > 1]
        paths = [path for path in known if partition in (None, path)]
        if not paths:
            raise OperationRefused(f"{full_name(table)} has no partition with two or more files to merge")
        if not self._tasks.start(("compact", table.id), self._compact(jobs, table, paths)):
            raise OperationRefused(f"{full_name(table)} is being compacted by an earlier request: wait, or cancel it")
        return {"table": full_name(table), "partitions": len(paths)}

    async def _compact(self, jobs: RunningJobs, table: LakeTable, paths: Iterable[str]) -> None:
        request = CompactionRequest(trigger="manual", forced=True)
        for path in paths:
            try:
                planned = await self._planner.plan(table.id, path, request)
                if planned is None:
                    return  # dropped
                if planned.spec is not None and (await jobs.run(planned.spec)).status == "cancelled":
                    return
            except (PolicyProblem, RegistryError) as error:
                log.warning("requested compaction could not begin", table=full_name(table), error=str(error))
                return

    async def explain(self, name: str) -> object:
        table = await find_table(self._store, name)
        if table.file_count > _MAX_EXPLAINED_FILES:
            raise OperationRefused(
                f"{full_name(table)} has {table.file_count:,} files, and the daemon would read all their rows: use "
                "`astha compaction explain`"
            )
        found = await explain(self._store, self._clock, table, self._policy)
        order = {"running": 0, "waiting": 1, "declined": 2}
        partitions = sorted(found.partitions, key=lambda one: (order.get(one.status, 3), one.partition))
        return {
            **msgspec.to_builtins(msgspec.structs.replace(found, partitions=[], decisions=[])),
            "partitions": msgspec.to_builtins(partitions[:_MAX_PARTITIONS]),
            "partition_count": len(partitions),
        }

    def progress(
        self,
        jobs: Iterable[CompactionJob],
        executor: object,
        remaining_s: Callable[[CompactionJob], float | None],
    ) -> object:
        """Returns the running jobs. ``merging`` and ``waiting`` count their tasks, in workers and for a free core;
        ``session`` is false while the session starts. All three are None with an executor that does not know them.
        """
        now = self._clock.monotonic()
        tasks: Counter[tuple[str, str]] = Counter()
        session: bool | None = None
        if isinstance(executor, ReportsTasks):
            session = executor.ready
            tasks.update((task.operation_id, task.state) for task in executor.progress())
        return {
            "session": session,
            "jobs": [
                {
                    "operation_id": job.operation_id,
                    "table": job.spec.name,
                    "partition": job.spec.partition_path,
                    "bytes_done": job.bytes_done,
                    "bytes_total": job.bytes_total,
                    "groups_done": job.groups_done,
                    "groups": len(job.spec.groups),
                    "running_s": round(now - job.began, 1),
                    "remaining_s": remaining_s(job),
                    "merging": None if session is None else tasks[job.operation_id, "running"],
                    "waiting": None if session is None else tasks[job.operation_id, "waiting"],
                }
                for job in jobs
            ],
        }
