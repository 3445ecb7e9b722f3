"""One job on a real registry, with and without failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from components.compactor.execution.job import CompactionJob
from components.compactor.execution.job_context import Step
from components.compactor.merge import MergeFailed, MergeResult, MergeTask
from components.compactor.planning.left_out import read_left_out
from components.compactor.spark.executor_protocol import (
    JobFailed,
    OutOfMemory,
    SessionLost,
    SessionProblem,
    StillWriting,
    TaskTimeout,
    WorkerCrashed,
)
from components.lib.lake.storage.locations import parse
from components.lib.lake.storage.objects import StorageUnavailable
from registry.contract import MetadataStore
from registry.errors import Unavailable
from registry.forwarding import ForwardingStore
from registry.inputs import FileDraft
from registry.models import FileOperation, TableDeleteFile, TableFile
from tests.doubles.merging import HeldExecutor, LocalExecutor, ScriptedExecutor, naive_merge
from tests.integration.components.compactor.harness import QUICK, Bench, Gate
from tests.poison import HANGS, poison
from tests.waiting import eventually


async def test_small_files_become_one(bench: Bench) -> None:
    old = await bench.insert(files=6)
    before = await bench.ids()
    outcome = await (await bench.job()).run()
    (new,) = await bench.store.list_files(bench.table.id)
    assert await bench.ids() == before
    assert (outcome.status, outcome.input_files, outcome.output_files, outcome.rows) == ("done", 6, 1, 18)
    assert (new.operation, new.row_count) == ("compaction", 18)
    (row,) = await bench.decisions()
    assert (row.status, row.operation_id, row.output_files, row.row_count) == ("done", new.operation_id, 1, 18)
    assert row.input_bytes == sum(file.file_size for file in old)
    await bench.require_tidy()


async def test_groups_of_one_claim_are_swapped_one_by_one(bench: Bench) -> None:
    files = await bench.insert(files=6)
    before = await bench.ids()
    outcome = await (await bench.job(None, files[:3], files[3:])).run()
    live = await bench.store.list_files(bench.table.id)
    assert await bench.ids() == before
    assert (outcome.status, outcome.groups, len(live)) == ("done", 2, 2)
    assert len({file.operation_id for file in live}) == 2
    (row,) = await bench.decisions()
    assert (row.status, row.output_files, row.row_count) == ("done", 2, 18)
    await bench.require_tidy()


class Meeting(LocalExecutor):
    """Merges wait for each other: they end only if they run at the same time."""

    def __init__(self, count: int) -> None:
        super().__init__(naive_merge)
        self._barrier = asyncio.Barrier(count)

    async def merge(self, task: MergeTask) -> MergeResult:
        result = await super().merge(task)
        await self._barrier.wait()
        return result


async def test_groups_are_merged_in_parallel(bench: Bench) -> None:
    files = await bench.insert(files=12)
    before = await bench.ids()
    limits = msgspec.structs.replace(QUICK, parallel_groups=3)
    groups = [files[start : start + 2] for start in range(0, 12, 2)]
    outcome = await (await bench.job(Meeting(3), *groups, limits=limits)).run()
    assert (outcome.status, outcome.groups, outcome.output_files) == ("done", 6, 6)
    assert await bench.ids() == before
    (row,) = await bench.decisions()
    assert (row.status, row.input_files, row.output_files) == ("done", 12, 6)
    await bench.require_tidy()


@pytest.mark.parametrize("at_once", [1, 2])
async def test_a_group_that_can_not_be_merged_does_not_stop_the_others(bench: Bench, at_once: int) -> None:
    files = await bench.insert(files=6)
    before = await bench.ids()
    limits = msgspec.structs.replace(QUICK, parallel_groups=at_once)
    executor = ScriptedExecutor(MergeFailed("a bad file"))
    outcome = await (await bench.job(executor, files[:2], files[2:4], files[4:], limits=limits)).run()
    assert (outcome.status, outcome.reason, outcome.groups) == ("done", "a bad file", 2)
    assert await bench.ids() == before
    assert [(row.status, row.input_files) for row in await bench.decisions()] == [("done", 4)]
    await bench.require_tidy()


class Harmed(LocalExecutor):
    """Merges of one file fail."""

    def __init__(self, path: str, error: Exception) -> None:
        super().__init__(naive_merge)
        self._path = path
        self._error = error

    async def merge(self, task: MergeTask) -> MergeResult:
        if self._path in {part.path for part in task.inputs}:
            raise self._error
        return await super().merge(task)


@pytest.mark.parametrize(
    "error", [WorkerCrashed("a worker crashed: Aborted"), TaskTimeout("it took too long"), OutOfMemory("heap")]
)
async def test_a_file_that_harms_its_reader_is_left_out_alone(bench: Bench, error: Exception) -> None:
    files = await bench.insert(files=2 if isinstance(error, OutOfMemory) else 4)
    more = await bench.insert(files=2)
    poison(parse(files[0].file_path).path)
    before = bench.read([*files[1:], *more])
    executor = Harmed(files[0].file_path, error)
    outcome = await (await bench.job(executor, files, more)).run()
    assert [(file.path, "does not match" in file.reason) for file in outcome.left_out] == [(files[0].file_path, True)]
    assert (outcome.status, outcome.reason) == ("done", f"left out: {outcome.left_out[0]}")
    live = await bench.store.list_files(bench.table.id)
    assert files[0] in live
    assert bench.read([file for file in live if file != files[0]]) == before
    (row,) = await bench.decisions()
    assert row.reason == outcome.reason
    assert read_left_out(row) == list(outcome.left_out)
    await bench.require_tidy()


async def test_bad_files_are_named_by_the_merge_itself(bench: Bench) -> None:
    """With the real merge: one is not a Parquet file, one is cut off, one is missing."""
    files = await bench.insert(files=6)
    paths = [parse(file.file_path).path for file in files]
    before = bench.read(files[3:])
    paths[0].write_bytes(b"x" * files[0].file_size)
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    paths[2].unlink()
    outcome = await (await bench.job()).run()
    assert (outcome.status, outcome.input_files, len(outcome.left_out)) == ("done", 3, 3), outcome
    assert "(and 2 more files)" in str(outcome.reason)
    live = await bench.store.list_files(bench.table.id)
    assert bench.read([file for file in live if file.operation == "compaction"]) == before


async def test_a_crash_that_no_single_file_causes(bench: Bench) -> None:
    files = await bench.insert(files=4)
    more = await bench.insert(files=2)
    executor = ScriptedExecutor(*[WorkerCrashed("a worker crashed: Aborted")] * 3)
    outcome = await (await bench.job(executor, files, more)).run()
    assert [len(task.inputs) for task in executor.tasks] == [4, 2, 2, 2]
    assert (outcome.status, outcome.groups, outcome.reason) == ("done", 1, "a worker crashed: Aborted")
    await bench.require_tidy()


async def test_nothing_but_bad_files(bench: Bench) -> None:
    files = await bench.insert(files=2)
    parse(files[0].file_path).path.write_bytes(HANGS)
    outcome = await (await bench.job()).run()
    assert (outcome.status, len(outcome.left_out)) == ("failed", 1)
    assert files[0].file_path in str(outcome.reason)
    assert await bench.store.list_files(bench.table.id) == files


async def test_a_merge_that_exceeds_its_limit_is_stuck(bench: Bench) -> None:
    await bench.insert(files=2)
    executor = HeldExecutor()
    job = await bench.job(executor)
    running = asyncio.create_task(job.run())
    await executor.arrived.wait()
    found = [job.stuck]
    job._due = dict.fromkeys(job._due, 0.0)
    found.append(job.stuck)
    executor.go_on.set()
    await running
    assert [*found, job.stuck] == [False, True, False]


async def test_a_stopped_job_stops_all_its_groups(bench: Bench) -> None:
    files = await bench.insert(files=4)
    limits = msgspec.structs.replace(QUICK, parallel_groups=2)
    job = await bench.job(HeldExecutor(), files[:2], files[2:], limits=limits)
    running = asyncio.create_task(job.run())
    await eventually(lambda: _intents(bench, 4), "two groups at work")
    job.cancellation.stop("cancelled", "test")
    assert (await running).status == "cancelled"
    assert await bench.store.list_files(bench.table.id) == files
    await bench.require_tidy()


async def _intents(bench: Bench, count: int) -> bool:
    return len(await bench.store.list_stale_intents(0)) == count


async def test_an_input_removed_before_the_swap_is_left_out(bench: Bench) -> None:
    files = await bench.insert(files=6)

    async def remove() -> None:
        await bench.store.remove_files(bench.table.id, files[:1], reason="test")

    executor = ScriptedExecutor()
    outcome = await (await bench.job(executor, on_step=Gate(Step.SWAP, remove))).run()
    assert outcome.status == "done"
    assert [len(task.inputs) for task in executor.tasks] == [6, 5]
    assert await bench.ids() == bench.read(files[1:])
    assert len(await bench.store.list_files(bench.table.id)) == 1
    assert [row.input_files for row in await bench.decisions()] == [5]
    await bench.require_tidy()


class Losing(LocalExecutor):
    """A file is removed during every merge that takes long, because it is of many files."""

    def __init__(self, bench: Bench, many: int) -> None:
        super().__init__(naive_merge)
        self._bench = bench
        self._many = many

    async def merge(self, task: MergeTask) -> MergeResult:
        result = await super().merge(task)
        if len(task.inputs) >= self._many:
            lost = [task.inputs[0].path]
            files = await self._bench.store.get_files(self._bench.table.id, lost)
            await self._bench.store.remove_files(self._bench.table.id, files, reason="test")
        return result


async def test_a_table_that_loses_files_all_the_time_is_merged_in_smaller_groups(bench: Bench) -> None:
    await bench.insert(files=40)
    job = await bench.job(Losing(bench, 8))
    outcome = await job.run()
    live = await bench.store.list_files(bench.table.id)
    assert outcome.status == "done"
    assert {file.operation for file in live} == {"compaction"}, "every file that is left was merged"
    assert sum(file.row_count for file in live) == len(await bench.ids())
    await bench.require_tidy()


async def test_a_group_that_can_not_be_smaller_and_changes_too_often_is_given_up(bench: Bench) -> None:
    files = await bench.insert(files=4)
    outcome = await (await bench.job(Losing(bench, 2), files)).run()
    assert outcome.status == "aborted"
    assert "compaction" not in {file.operation for file in await bench.store.list_files(bench.table.id)}
    await bench.require_tidy()


async def test_a_delete_stops_the_merge_at_once(bench: Bench) -> None:
    files = await bench.insert(files=3)
    executor = HeldExecutor()
    job = await bench.job(executor)
    running = asyncio.create_task(job.run())
    await executor.arrived.wait()
    await bench.store.remove_files(bench.table.id, files[1:], reason="test")
    for file in files[1:]:
        job.cancellation.input_changed(file.file_path)
    outcome = await running
    assert (outcome.status, outcome.output_files) == ("aborted", 0)
    assert outcome.reason is not None
    assert "not worth a merge" in outcome.reason
    assert await bench.ids() == bench.read(files[:1])
    await bench.require_tidy()


async def test_files_compacted_between_plan_and_claim_are_skipped(bench: Bench) -> None:
    await bench.insert(files=4)
    first, second = await bench.job(), await bench.job(ScriptedExecutor())
    assert (await first.run()).status == "done"
    outcome = await second.run()
    assert outcome.status == "aborted"
    assert second._context.executor.tasks == []  # type: ignore[attr-defined]
    await bench.require_tidy()


async def test_two_jobs_of_one_partition(bench: Bench, other: MetadataStore) -> None:
    await bench.insert(files=4)
    executor = HeldExecutor()
    running = asyncio.create_task((await bench.job(executor)).run())
    await executor.arrived.wait()
    outcome = await (await bench.job(owner="another", store=other)).run()
    assert outcome.status == "declined"
    assert "bench" in str(outcome.reason)
    executor.go_on.set()
    assert (await running).status == "done"
    await bench.require_tidy()


async def test_a_job_whose_claim_was_taken_over_gives_up(bench: Bench, clock: Any) -> None:
    """A paused process learns it from its heartbeat, or at the latest from the swap."""
    files = await bench.insert(files=4)
    executor = HeldExecutor()
    slow = asyncio.create_task(
        (await bench.job(executor, limits=msgspec.structs.replace(QUICK, heartbeat_s=3600.0))).run()
    )
    await executor.arrived.wait()
    clock.advance(31_000)
    assert (await (await bench.job(owner="another")).run()).status == "done"
    executor.go_on.set()
    outcome = await slow
    assert outcome.status == "aborted"
    assert await bench.ids() == bench.read(files)
    assert sorted(row.status for row in await bench.decisions()) == ["aborted", "done"]
    await bench.require_tidy()


async def test_out_of_memory_halves_the_group(bench: Bench) -> None:
    await bench.insert(files=8)
    before = await bench.ids()
    executor = ScriptedExecutor(OutOfMemory("heap"), OutOfMemory("heap"))
    outcome = await (await bench.job(executor)).run()
    assert (outcome.status, outcome.groups) == ("done", 3)
    assert [len(task.inputs) for task in executor.tasks] == [8, 4, 2, 2, 4]
    assert await bench.ids() == before
    assert [row.output_files for row in await bench.decisions()] == [3]
    await bench.require_tidy()


async def test_two_files_that_need_too_much_memory(bench: Bench) -> None:
    await bench.insert(files=3)
    before = await bench.ids()
    outcome = await (await bench.job(ScriptedExecutor(*[OutOfMemory("heap: give it more")] * 2))).run()
    assert (outcome.status, outcome.reason) == ("failed", "heap: give it more")
    assert await bench.ids() == before
    assert [row.reason for row in await bench.decisions()] == ["heap: give it more"]
    await bench.require_tidy()


@pytest.mark.parametrize("error", [SessionLost("gone"), JobFailed("no idea"), StorageUnavailable("no answer")])
async def test_transient_errors_are_retried(bench: Bench, error: Exception) -> None:
    await bench.insert(files=4)
    before = await bench.ids()
    outcome = await (await bench.job(ScriptedExecutor(error, error))).run()
    assert outcome.status == "done"
    assert await bench.ids() == before


async def test_waiting_raises_the_score(bench: Bench) -> None:
    await bench.insert(files=4)
    executor = ScriptedExecutor(*[SessionLost("gone")] * 9)
    outcome = await (await bench.job(executor)).run()
    assert (outcome.status, len(executor.tasks)) == ("failed", QUICK.attempts)
    await bench.require_tidy()


def lost_row(result: MergeResult) -> MergeResult:
    return msgspec.structs.replace(result, rows_out=result.rows_out - 1)


def other_values(result: MergeResult) -> MergeResult:
    return msgspec.structs.replace(result, checksums_out={0: "another"})


@pytest.mark.parametrize("falsify", [lost_row, other_values])
async def test_a_result_that_is_not_its_input_is_never_swapped(
    bench: Bench, falsify: Callable[[MergeResult], MergeResult]
) -> None:
    files = await bench.insert(files=4)
    executor = ScriptedExecutor(falsify)
    outcome = await (await bench.job(executor)).run()
    assert (outcome.status, len(executor.tasks)) == ("failed", 1)
    assert await bench.store.list_files(bench.table.id) == files
    await bench.require_tidy()


@pytest.mark.parametrize("error", [MergeFailed("bad file"), SessionProblem("no Java"), RuntimeError("a bug")])
async def test_permanent_errors_are_not_retried(bench: Bench, error: Exception) -> None:
    files = await bench.insert(files=4)
    executor = ScriptedExecutor(error)
    outcome = await (await bench.job(executor)).run()
    assert (outcome.status, outcome.error, len(executor.tasks)) == ("failed", error, 1)
    assert await bench.store.list_files(bench.table.id) == files


async def test_a_requested_cancellation_stops_the_job(bench: Bench) -> None:
    files = await bench.insert(files=4)
    executor = HeldExecutor()
    running = asyncio.create_task((await bench.job(executor)).run())
    await executor.arrived.wait()
    await bench.store.request_cancel(bench.table.id)
    outcome = await running
    assert outcome.status == "cancelled"
    assert [row.status for row in await bench.decisions()] == ["cancelled"]
    assert await bench.store.list_files(bench.table.id) == files
    await bench.require_tidy()


@pytest.mark.parametrize("step", list(Step)[1:])
async def test_a_stop_at_any_step_leaves_nothing(bench: Bench, step: Step) -> None:
    files = await bench.insert(files=4)
    before = await bench.ids()
    held = asyncio.Event()

    async def hold() -> None:
        held.set()
        await asyncio.Event().wait()

    running = asyncio.create_task((await bench.job(on_step=Gate(step, hold))).run())
    await held.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await bench.ids() == before
    assert (await bench.store.list_files(bench.table.id) == files) == (step is not Step.FINISH)
    assert not [row for row in await bench.decisions() if row.status == "running"]
    await bench.require_tidy()


async def test_files_that_may_still_be_written_are_left_to_the_cleaner(bench: Bench) -> None:
    files = await bench.insert(files=4)
    executor = HeldExecutor(StillWriting("a worker does not answer"))
    job = await bench.job(executor)
    running = asyncio.create_task(job.run())
    await executor.arrived.wait()
    job.cancellation.stop("cancelled", "test")
    assert (await running).status == "cancelled"
    assert await bench.store.list_files(bench.table.id) == files
    assert {intent.owner for intent in await bench.store.list_stale_intents(0)} == {job.operation_id}


async def test_a_dropped_table(bench: Bench) -> None:
    await bench.insert(files=4)

    async def drop() -> None:
        await bench.store.drop_table(bench.table.id, purge=True)

    outcome = await (await bench.job(on_step=Gate(Step.SWAP, drop))).run()
    assert outcome.status == "aborted"
    assert "dropped" in str(outcome.reason)
    await bench.require_tidy()


class DeafStore(ForwardingStore):
    """Swaps, and loses the response, a few times."""

    def __init__(self, inner: MetadataStore, *, before: int, after: int) -> None:
        super().__init__(inner)
        self._before, self._after = before, after

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
        if self._before:
            self._before -= 1
            raise Unavailable("the call is lost")
        done = await super().swap_files(
            table_id,
            old,
            new,
            operation_id=operation_id,
            operation=operation,
            intents_of=intents_of,
            seen_deletes=seen_deletes,
            removed_deletes=removed_deletes,
        )
        if self._after:
            self._after -= 1
            raise Unavailable("the answer is lost")
        return done


class SlowStore(DeafStore):
    """Signals when a swap has begun and is done, and holds its response."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner, before=0, after=0)
        self.swapped, self.answer = asyncio.Event(), asyncio.Event()

    async def swap_files(self, *args: Any, **options: Any) -> list[TableFile]:
        done = await super().swap_files(*args, **options)
        self.swapped.set()
        await self.answer.wait()
        return done


async def test_a_stop_in_the_middle_of_the_swap_removes_nothing(bench: Bench) -> None:
    """A job that is cancelled there must not remove files that belong to the table by now."""
    await bench.insert(files=4)
    ids = await bench.ids()
    store = SlowStore(bench.store)
    running = asyncio.create_task((await bench.job(store=store)).run())
    await store.swapped.wait()
    running.cancel()
    await asyncio.sleep(0)
    store.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await bench.ids() == ids
    assert [row.status for row in await bench.decisions()] == ["done"]
    await bench.require_tidy()


@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1), (1, 1)])
async def test_the_registry_does_not_answer_the_swap(bench: Bench, before: int, after: int) -> None:
    await bench.insert(files=4)
    ids = await bench.ids()
    outcome = await (await bench.job(store=DeafStore(bench.store, before=before, after=after))).run()
    assert (outcome.status, outcome.output_files) == ("done", 1)
    assert await bench.ids() == ids
    await bench.require_tidy()


async def test_the_heartbeat_renews_claim_and_intents(bench: Bench, clock: Any) -> None:
    await bench.insert(files=4)
    executor = HeldExecutor()
    running = asyncio.create_task((await bench.job(executor)).run())
    await executor.arrived.wait()
    clock.advance(60_000)

    async def renewed() -> bool:
        (row,) = await bench.decisions()
        return row.updated_at == clock.now_ms() and await bench.store.list_stale_intents(1) == []

    await eventually(renewed, "signs of life")
    executor.go_on.set()
    assert (await running).status == "done"
    await bench.require_tidy()


async def test_progress_is_reported_in_bytes(bench: Bench) -> None:
    files = await bench.insert(files=4)
    seen: list[tuple[int, int]] = []

    async def look(_step: Step) -> None:
        seen.append((job.bytes_done, job.bytes_total))

    job: CompactionJob = await bench.job(None, files[:2], files[2:], on_step=look)
    await job.run()
    total = sum(file.file_size for file in files)
    assert seen[0] == (0, total)
    assert (job.bytes_done, job.groups_done) == (total, 2)
