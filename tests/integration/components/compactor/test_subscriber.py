"""The compactor in a daemon: it decides by events, runs jobs in the background, and survives failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from astha.backoff import Backoff
from astha.clock import SystemLoopClock
from astha.lanes.state import LaneState
from astha.server.health import readiness
from astha.subscribers import ComponentContext
from components.compactor.execution.job_context import JobLimits
from components.compactor.merge import MergeResult, MergeTask, merge
from components.compactor.scheduling.journal import Decision
from components.compactor.settings import CompactorSettings
from components.compactor.spark.executor_protocol import Executor, SessionProblem, TaskProgress
from components.compactor.subscriber import Compactor
from components.lib.lake.storage.locations import parse
from registry.connect import open_store
from registry.contract import ConsistentRead, MetadataStore
from registry.inputs import CompactionDraft
from registry.models import Compaction, CompactionStatus
from tests.doubles.merging import HeldExecutor, LocalExecutor
from tests.fixtures.daemons import QUICK, RunDaemon, Running
from tests.integration.components.compactor.harness import Bench
from tests.poison import HANGS
from tests.waiting import eventually

NAME = "compactor"


class Floor:
    """A table, and daemons with a compactor over it."""

    def __init__(self, url: str, bench: Bench, run_daemon: RunDaemon) -> None:
        self.url = url
        self.bench = bench
        self._run_daemon = run_daemon

    def compactor(self, executor: Callable[[], Executor] | None = None, **settings: Any) -> Compactor:
        around = ComponentContext(self.bench.store, SystemLoopClock(), SecretStr(self.url), self.bench.lake)
        chosen = CompactorSettings.model_validate({"heartbeat_s": 0.05, "check_every_s": 0.2, **settings})
        return Compactor(chosen, around, executor or (lambda: LocalExecutor(merge)))

    async def start(self, executor: Callable[[], Executor] | None = None, **settings: Any) -> tuple[Running, Compactor]:
        compactor = self.compactor(executor, **settings)
        running = await self._run_daemon(self.url, {NAME: compactor})
        await running.live(NAME)
        return running, compactor

    async def rows(self, *statuses: CompactionStatus) -> list[Compaction]:
        return await self.bench.store.list_compactions(statuses=statuses)

    async def until(self, status: CompactionStatus) -> Compaction:
        async def there() -> bool:
            return bool(await self.rows(status))

        await eventually(there, f"a compaction that is {status}")
        return (await self.rows(status))[0]

    async def until_files(self, count: int) -> None:
        async def there() -> bool:
            return len(await self.bench.store.list_files(self.bench.table.id)) == count

        await eventually(there, f"{count} files")


@pytest.fixture
async def lasting(url: str) -> AsyncIterator[MetadataStore]:
    """With the real clock, because decisions wait for real time. Outlives the daemons."""
    store = await open_store(url)
    yield store
    await store.close()


@pytest.fixture
async def floor(url: str, lasting: MetadataStore, run_daemon: RunDaemon, warehouse: Path) -> Floor:
    bench = Bench(lasting, warehouse)
    await bench.create()
    return Floor(url, bench, run_daemon)


def shown(compactor: Compactor) -> dict[tuple[str, ...], float]:
    return {(measure.name, *measure.labels.values()): measure.value for measure in compactor.metrics()}


async def test_the_fifth_small_file_triggers_a_decision(floor: Floor) -> None:
    running, compactor = await floor.start()
    for _ in range(4):
        await floor.bench.insert()
    assert await floor.rows() == []
    await floor.bench.insert()
    row = await floor.until("done")
    await floor.until_files(1)
    assert (row.trigger, row.input_files, row.output_files, row.row_count) == ("event", 5, 1, 15)
    assert row.position is not None
    assert len(await floor.bench.ids()) == 15
    await eventually(lambda: shown(compactor)["jobs", "done"] == 1, "a job that is counted")
    metrics = shown(compactor)
    assert (metrics["input_files",], metrics["output_files",], metrics["waiting_partitions",]) == (5, 1, 0)
    await running.stop()
    await floor.bench.require_tidy()


async def test_files_from_before_the_start(floor: Floor) -> None:
    await floor.bench.insert(files=7)
    running, _ = await floor.start()
    row = await floor.until("done")
    await running.stop()
    assert (row.trigger, row.input_files) == ("refresh", 7)
    await floor.bench.require_tidy()


async def test_a_bad_file_is_left_out_with_a_reason(floor: Floor) -> None:
    """The other files are compacted, now and later, and it is not tried again with each of them."""
    bad, *good = await floor.bench.insert(files=5)
    before = floor.bench.read(good)
    parse(bad.file_path).path.write_bytes(HANGS)
    running, compactor = await floor.start()
    await floor.until_files(2)
    await eventually(lambda: _done(floor, [f"left out: {bad.file_path} has 24 bytes"]), "what was left out")
    live = await floor.bench.store.list_files(bad.table_id)
    assert floor.bench.read([file for file in live if file != bad]) == before
    await eventually(lambda: shown(compactor).get(("left_out_files", "shop.orders")) == 1, "a file that is left out")
    await running.stop()
    # Another compactor knows of it by the journal.
    running, compactor = await floor.start()
    await floor.bench.insert(files=4)
    await eventually(lambda: _done(floor, ["None", "left out"]), "the next files, without the bad one")
    assert bad in await floor.bench.store.list_files(bad.table_id)
    assert shown(compactor)["left_out_files", "shop.orders"] == 1
    assert shown(compactor)["stuck_jobs",] == 0
    (problem,) = compactor.problems()
    assert problem.subject == "shop.orders"
    assert problem.reason.startswith(f"left out of compaction: {bad.file_path} has 24 bytes")
    assert problem.next_try is not None
    await running.stop()


async def test_a_merge_that_does_not_end_is_a_problem(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobLimits, "stuck_after_s", lambda _limits, _size: 0.0)
    held = HeldExecutor()
    running, compactor = await floor.start(lambda: held)
    await floor.bench.insert(files=5)
    await held.arrived.wait()
    await eventually(lambda: shown(compactor)["stuck_jobs",] == 1, "a job that is stuck")
    (problem,) = compactor.problems()
    assert (problem.subject, "could not be ended" in problem.reason) == ("shop.orders", True)
    held.go_on.set()
    await eventually(lambda: not list(compactor.problems()), "the end of the problem")
    await running.stop()


async def _done(floor: Floor, beginnings: list[str]) -> bool:
    """Returns how the reasons of finished jobs begin, newest first."""
    reasons = [str(row.reason) for row in await floor.rows("done")]
    return len(reasons) == len(beginnings) and all(map(str.startswith, reasons, beginnings))


async def test_outputs_wait_for_new_files(floor: Floor) -> None:
    bench = floor.bench
    for number in range(6):
        old = await bench.insert(files=2)
        await bench.store.swap_files(bench.table.id, old, [bench.merged(old)], operation_id=f"earlier-{number}")
    before = await bench.ids()
    await floor.start()
    assert await floor.rows() == []
    new = await bench.insert()
    row = await floor.until("done")
    assert (row.trigger, row.input_files) == ("event", 7)
    assert await bench.ids() == sorted(before + bench.read(new))


async def test_a_table_with_compaction_disabled(floor: Floor) -> None:
    await floor.bench.store.alter_table(floor.bench.table.id, properties={"compaction.enabled": "false"})
    await floor.bench.insert(files=7)
    await floor.start()
    row = await floor.until("declined")
    assert row.rule == "disabled"
    assert len(await floor.bench.store.list_files(floor.bench.table.id)) == 7
    await floor.bench.store.alter_table(floor.bench.table.id, properties={})
    await floor.bench.insert()
    assert (await floor.until("done")).input_files == 8


async def test_a_delete_reaches_the_running_merge(floor: Floor) -> None:
    held = HeldExecutor()
    running, _ = await floor.start(lambda: held)
    files = await floor.bench.insert(files=5)
    await held.arrived.wait()
    await floor.bench.store.remove_files(floor.bench.table.id, files[:1], reason="test")
    row = await floor.until("aborted")
    await running.stop()
    assert row.reason is not None
    assert "removed" in row.reason
    assert await floor.bench.ids() == floor.bench.read(files[1:])
    await floor.bench.require_tidy()


async def test_a_stop_ends_running_jobs(floor: Floor) -> None:
    held = HeldExecutor()
    running, _ = await floor.start(lambda: held)
    files = await floor.bench.insert(files=5)
    await held.arrived.wait()
    await running.stop()
    assert [row.status for row in await floor.rows("aborted", "running")] == ["aborted"]
    assert await floor.bench.store.list_files(floor.bench.table.id) == files
    await floor.bench.require_tidy()


async def test_a_dead_compactor_is_taken_over(floor: Floor) -> None:
    """Its claim becomes stale, and the next compactor takes over."""
    files = await floor.bench.insert(files=5)
    draft = CompactionDraft(table_id=floor.bench.table.id, table_name="shop.orders", rule="many small files")
    await floor.bench.store.begin_compaction(draft, operation_id="dead", owner="the dead one", stale_after_ms=1)
    await floor.start(stale_after_s=0.5)
    row = await floor.until("done")
    assert row.operation_id != "dead"
    (dead,) = await floor.rows("aborted")
    assert "no heartbeat" in str(dead.reason)
    assert await floor.bench.ids() == floor.bench.read(files)


class Missing(LocalExecutor):
    """Has no session until it is repaired."""

    def __init__(self) -> None:
        super().__init__(merge)
        self.mended = False

    async def merge(self, task: MergeTask) -> MergeResult:
        await self.health()
        return await super().merge(task)

    async def health(self) -> None:
        if not self.mended:
            raise SessionProblem("there is no Java: install Java 17")


async def test_without_spark_the_component_reports_it_and_waits(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.compactor.subscriber._PROBE_BACKOFF", Backoff(initial_s=0.05, max_s=0.05))
    executor = Missing()
    running, compactor = await floor.start(lambda: executor)
    await floor.bench.insert(files=5)
    await floor.until("failed")
    with pytest.raises(SessionProblem, match="install Java 17"):
        await compactor.on_health()
    await running.until(lambda: running.lane(NAME).state is LaneState.BROKEN, "broken")
    assert "install Java 17" in str(running.lane(NAME).reason)
    assert len(await floor.rows("failed")) == 1
    executor.mended = True
    await running.live(NAME)
    await floor.until("done")
    await running.stop()
    await floor.bench.require_tidy()


async def test_a_waiting_compaction_can_be_cancelled(floor: Floor) -> None:
    held = HeldExecutor()
    await floor.start(lambda: held, jobs=1)
    await floor.bench.insert(files=5)
    await held.arrived.wait()
    first = floor.bench.table
    second = await floor.bench.create("second")
    await floor.bench.insert(files=5)
    await floor.until("waiting")
    (waiting,) = await floor.bench.store.request_cancel(second.id)
    assert waiting.status == "cancelled"
    held.go_on.set()
    assert (await floor.until("done")).table_id == first.id
    await eventually(lambda: _none_waits(floor), "no partition waits")
    assert len(await floor.bench.store.list_files(second.id)) == 5


async def _none_waits(floor: Floor) -> bool:
    rows = await floor.rows()
    return not [row for row in rows if row.status == "running"]


async def test_a_partition_that_fails_is_named(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if something else than the merge fails; the component stays healthy."""

    async def plan(*_: object) -> None:
        raise OSError("its storage is gone")

    running, compactor = await floor.start()
    monkeypatch.setattr(compactor._planner, "plan", plan)
    for _ in range(5):
        await floor.bench.insert()
    await eventually(lambda: bool(list(compactor.problems())), "the problem shows")
    (problem,) = compactor.problems()
    assert "its storage is gone" in problem.reason
    assert await compactor.on_health()
    await running.stop()


async def test_counting_all_files_may_take_longer_than_a_delivery(
    floor: Floor, run_daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With millions of files: the daemon counts in a refresh, with the time limit of a refresh."""
    compactor = floor.compactor()
    load, counted = compactor._scheduler.load, asyncio.Event()

    async def slowly(snapshot: ConsistentRead) -> list[Decision]:
        await counted.wait()
        return await load(snapshot)

    monkeypatch.setattr(compactor._scheduler, "load", slowly)
    await floor.bench.insert(files=7)
    policy = QUICK.model_copy(update={"delivery_timeout_s": 0.05})
    running = await run_daemon(floor.url, {NAME: compactor}, policy=policy)
    await running.until(lambda: running.lane(NAME).refresh_began is not None, "the first refresh")
    assert await floor.rows() == []
    assert not readiness(running.daemon, 60.0).ready
    assert not compactor._tasks, "nothing is decided by a part of the files"
    counted.set()
    await running.live(NAME)
    await floor.until("done")
    assert running.lane(NAME).counts.failed_refreshes == 0
    await running.stop()


async def test_a_job_without_progress_is_reported(floor: Floor) -> None:
    held = HeldExecutor()
    running, compactor = await floor.start(lambda: held)
    await floor.bench.insert(files=7)
    await floor.until("running")
    (work,) = compactor.work()
    assert work.name.startswith("the compaction of ")
    (job,) = compactor._jobs
    job.began -= 4_000
    compactor._progress.clear()
    assert [each.stuck for each in compactor.work()] == [True]
    assert any("has been idle for 40" in reason for reason in readiness(running.daemon, 60.0).reasons)
    job.bytes_done += 1
    assert [each.stuck for each in compactor.work()] == [False]
    held.go_on.set()
    await floor.until("done")
    await eventually(lambda: compactor.work() == [], "the end of the job")
    await running.stop()


class TrackedExecutor(HeldExecutor):
    """Knows its tasks, as the one on Spark does."""

    ready = False
    tasks: Sequence[TaskProgress] = ()

    def progress(self) -> list[TaskProgress]:
        return list(self.tasks)


async def test_progress_says_where_the_tasks_are(floor: Floor) -> None:
    executor = TrackedExecutor()
    running, compactor = await floor.start(lambda: executor)
    await floor.bench.insert(files=7)
    await floor.until("running")
    found = await progress(compactor)
    assert found["session"] is False
    (job,) = found["jobs"]
    assert (job["merging"], job["waiting"], job["groups_done"], job["remaining_s"]) == (0, 0, 0, None)
    executor.ready = True
    task = TaskProgress(job["operation_id"], "db.t", "", "running", 1, "worker", 1.0)
    waiting, other = msgspec.structs.replace(task, state="waiting"), msgspec.structs.replace(task, operation_id="x")
    executor.tasks = [task, waiting, other]
    found = await progress(compactor)
    assert found["session"] is True
    assert [(job["merging"], job["waiting"]) for job in found["jobs"]] == [(1, 1)]
    executor.go_on.set()
    await floor.until("done")
    await running.stop()


async def progress(compactor: Compactor) -> dict[str, Any]:
    found = await compactor.operate("progress", "", {})
    assert isinstance(found, dict)
    return found
