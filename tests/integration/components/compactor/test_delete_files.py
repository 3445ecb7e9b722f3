"""Jobs in tables that engines write: deleted rows never come back, and a swap never undoes an engine's commit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from astha.clock import SystemLoopClock
from components.compactor.execution.job import CompactionJob
from components.compactor.execution.job_context import Step
from components.compactor.explain import explain
from components.compactor.planning.file_selection import UNWRITABLE
from components.compactor.planning.planner import CompactionRequest, PlannedJob, Planner
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.scheduling.scoring import DELETE_FILES, DELETED_ROWS
from registry.inputs import CatalogCommit, DeleteFileDraft
from registry.json_text import JsonText, parse_json, to_json_text
from registry.models import TableDeleteFile, TableFile
from tests.delete_files import delete_draft, position_deletes
from tests.fixtures.stores import OpenStore
from tests.integration.components.compactor.harness import Bench, Gate
from tests.parquet_files import PLAIN


class Engine:
    """Commits rows to the registry as the catalog does. Nothing here reads Iceberg's metadata."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._commits = 0

    async def commit(
        self, *deletes: DeleteFileDraft, removed: tuple[TableFile, ...] = (), required: tuple[str, ...] = ()
    ) -> None:
        table = self._bench.table
        expected = None if not self._commits else f"file:///m{self._commits}.json"
        self._commits += 1
        commit = CatalogCommit(
            catalog="astha", namespace="shop", name=table.name, expected=expected,
            location=f"file:///m{self._commits}.json", table_id=table.id, deletes_added=deletes,
            removed=[file.file_path for file in removed], required=required, snapshot_id=self._commits,
            operation="delete",
        )  # fmt: skip
        await self._bench.store.commit_catalog([commit])

    async def delete(self, *files: TableFile, places: tuple[int, ...] = (0,)) -> DeleteFileDraft:
        """Deletes the first row of each of these files, by one delete file."""
        path = self._bench.warehouse / f"deletes-{self._commits}.parquet"
        draft = delete_draft(position_deletes(path, {file.file_path: places for file in files}))
        await self.commit(draft, required=tuple(file.file_path for file in files))
        return draft


@pytest.fixture
async def bench(url: str, opened: OpenStore, sqlite_directory: Path) -> Bench:
    made = Bench(await opened(url), sqlite_directory)
    await made.create()
    return made


@pytest.fixture
def engine(bench: Bench) -> Engine:
    return Engine(bench)


async def planned(bench: Bench, *, forced: bool = False) -> PlannedJob:
    planner = Planner(bench.store, SystemLoopClock(), bench.lake, CompactionPolicy(min_inputs=2), 1 << 28)
    found = await planner.plan(bench.table.id, "", CompactionRequest(forced=forced))
    assert found is not None
    return found


async def deletes_of(bench: Bench) -> list[TableDeleteFile]:
    return await bench.store.list_delete_files(bench.table.id)


async def test_deletes_are_applied_and_their_files_removed(bench: Bench, engine: Engine) -> None:
    files = await bench.insert(3)
    draft = await engine.delete(*files[:2])
    planned_job = await planned(bench)
    assert planned_job.spec is not None
    outcome = await CompactionJob(planned_job.spec, bench.context()).run()
    assert (outcome.status, outcome.rows) == ("done", 7)
    assert await bench.ids() == [1, 2, 4, 5, 6, 7, 8]
    assert await deletes_of(bench) == []
    awaiting = await bench.store.list_files_awaiting_deletion(table_id=bench.table.id)
    assert draft.file_path in {file.file_path for file in awaiting}


async def test_a_delete_file_stays_while_another_file_needs_it(bench: Bench, engine: Engine) -> None:
    files = await bench.insert(4)
    await engine.delete(*files)
    job = await bench.job(None, files[:2])
    assert (await job.run()).status == "done"
    assert len(await deletes_of(bench)) == 1, "two files still need it"
    left = [file for file in await bench.store.list_files(bench.table.id) if file in files]
    assert (await (await bench.job(None, left)).run()).status == "done"
    assert await deletes_of(bench) == []
    assert await bench.ids() == [1, 2, 4, 5, 7, 8, 10, 11]


async def test_one_large_file_is_rewritten_if_many_rows_are_deleted(bench: Bench, engine: Engine) -> None:
    (file,) = await bench.insert(1)
    assert (await planned(bench)).spec is None
    await engine.delete(file)
    plan = await planned(bench)
    assert (plan.plan.rule, plan.plan.input_files) == (DELETED_ROWS, 1)
    assert plan.spec is not None
    assert (await CompactionJob(plan.spec, bench.context()).run()).status == "done"
    assert await bench.ids() == [1, 2]
    assert (await planned(bench)).spec is None, "nothing more to do"


async def test_a_file_without_rows_left_is_removed(bench: Bench, engine: Engine) -> None:
    files = await bench.insert(2)
    await engine.delete(*files, places=(0, 1, 2))
    plan = await planned(bench)
    assert plan.spec is not None
    assert (await CompactionJob(plan.spec, bench.context()).run()).status == "done"
    assert await bench.ids() == []
    assert await deletes_of(bench) == []


@pytest.mark.parametrize("step", [Step.MERGE, Step.SWAP])
async def test_rows_deleted_during_the_merge_stay_deleted(bench: Bench, engine: Engine, step: Step) -> None:
    files = await bench.insert(3)

    async def delete() -> None:
        await engine.delete(files[0])

    outcome = await (await bench.job(None, on_step=Gate(step, delete))).run()
    assert outcome.status == "done"
    assert await bench.ids() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert await deletes_of(bench) == []


async def test_a_swap_that_loses_its_files_to_an_engine_goes_on_without_them(bench: Bench, engine: Engine) -> None:
    files = await bench.insert(3)

    async def rewrite() -> None:
        await engine.commit(removed=(files[0],))

    outcome = await (await bench.job(None, on_step=Gate(Step.SWAP, rewrite))).run()
    assert (outcome.status, outcome.input_files) == ("done", 2)
    assert await bench.ids() == [3, 4, 5, 6, 7, 8]


def other_kind(draft: DeleteFileDraft, **fields: object) -> DeleteFileDraft:
    return msgspec.structs.replace(draft, **fields)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"content": "equality", "equality_ids": to_json_text([1])}, "equality delete files"),
        ({"file_type": "puffin", "content_offset": 4}, "deletion vectors"),
        ({"file_type": "avro"}, "delete files in avro"),
    ],
)
async def test_other_deletes_prevent_compaction(
    bench: Bench, engine: Engine, fields: dict[str, object], why: str
) -> None:
    files = await bench.insert(5)
    draft = delete_draft(position_deletes(bench.warehouse / "d.parquet", {files[0].file_path: [0]}))
    job = await bench.job()
    await engine.commit(other_kind(draft, **fields))
    for forced in (False, True):
        found = await planned(bench, forced=forced)
        assert (found.spec, found.plan.rule) == (None, DELETE_FILES)
        assert why in (found.plan.reason or "")
    shown = await explain(bench.store, SystemLoopClock(), bench.table, CompactionPolicy())
    (partition,) = shown.partitions
    assert (partition.status, partition.rule, partition.delete_files) == ("declined", DELETE_FILES, 1)
    assert why in (partition.reason or "")
    outcome = await job.run()
    assert (outcome.status, why in (outcome.reason or "")) == ("aborted", True), "planned before"
    assert len(await bench.store.list_files(bench.table.id)) == 5


async def test_an_unreadable_delete_file_prevents_compaction(bench: Bench, engine: Engine) -> None:
    files = await bench.insert(2)
    draft = await engine.delete(*files)
    await asyncio.to_thread(Path(draft.file_path.removeprefix("file://")).unlink)
    outcome = await (await bench.job()).run()
    assert outcome.status == "failed"
    assert "would come back" in (outcome.reason or "")
    assert len(await bench.store.list_files(bench.table.id)) == 2


async def test_a_schema_that_can_not_be_written_prevents_compaction(bench: Bench, url: str) -> None:
    await bench.insert(5)
    schema = parse_json(PLAIN.draft().schema)
    assert isinstance(schema, dict)
    fields = schema["fields"]
    assert isinstance(fields, list)
    changed: JsonText = to_json_text(
        {**schema, "fields": [*fields, {"id": 9, "name": "n", "type": "timestamp_ns", "required": False}]}
    )
    await bench.store.add_schema_version(
        bench.table.id, msgspec.structs.replace(PLAIN.draft(), schema=changed), expected=1
    )
    found = await planned(bench)
    assert (found.spec, found.plan.rule) == (None, UNWRITABLE)
    assert "timestamp_ns" in (found.plan.reason or "")
    shown = await explain(bench.store, SystemLoopClock(), bench.table, CompactionPolicy())
    assert shown.partitions[0].rule == UNWRITABLE
