"""The orchestrator in a daemon, over both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext, LakeSettings
from components.metadata_orchestrator import MetadataOrchestrator, create
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.inputs import TableDraft
from registry.json_text import to_json_text
from registry.models import LakeTable, UploadIntent
from tests.fixtures.daemons import RunDaemon, Running
from tests.samples import file

NAME = "metadata_orchestrator"


def draft(kind: str) -> TableDraft:
    """A version with one column."""
    column = {"id": 1, "name": "n", "required": False, "type": kind}
    return TableDraft(schema=to_json_text({"type": "struct", "fields": [column]}))


DRAFT = draft("long")
INVALID = draft("boolean")


class Orchestrated:
    def __init__(self, orchestrator: MetadataOrchestrator, running: Running, store: MetadataStore) -> None:
        self.orchestrator = orchestrator
        self.running = running
        self.store = store

    async def gone(self, table: LakeTable) -> None:
        async def dropped() -> bool:
            return await self.store.get_table_by_id(table.id) is None

        await self.running.until(dropped, f"{table.name} dropped")

    async def problems_are(self, *subjects: str) -> None:
        def listed() -> bool:
            return [problem.subject for problem in self.orchestrator.known_problems] == list(subjects)

        await self.running.until(listed, f"problems {subjects}")


Orchestrate: TypeAlias = Callable[..., Awaitable[Orchestrated]]


@pytest.fixture
async def orchestrate(url: str, store: MetadataStore, run_daemon: RunDaemon) -> AsyncIterator[Orchestrate]:
    """Runs a daemon with only the orchestrator, for whose clock the test's rows are years old."""
    real = await open_store(url)

    async def start(**settings: Any) -> Orchestrated:
        orchestrator = create(settings, ComponentContext(real, SystemLoopClock(), SecretStr(url), LakeSettings()))
        running = await run_daemon(url, {NAME: orchestrator})
        await running.live()
        return Orchestrated(orchestrator, running, store)

    yield start
    await real.close()


@pytest.mark.parametrize("purge", [False, True])
async def test_a_table_is_created_and_dropped(
    store: MetadataStore, orchestrate: Orchestrate, tmp_path: Path, purge: bool
) -> None:
    found = await orchestrate()
    location = tmp_path / "db" / "t"
    table = await store.create_table("db", "t", f"file://{location}", DRAFT)
    await found.running.until(location.is_dir, "the table's directory")
    await store.add_files(table.id, [file(f"file://{location}/a"), file(f"file://{location}/b")])
    await store.alter_table(table.id, status="dropping", properties={"drop.purge": str(purge).lower()})
    await found.gone(table)
    awaiting = await store.list_files_awaiting_deletion()
    assert [part.file_path for part in awaiting] == ([f"file://{location}/{name}" for name in "ab"] if purge else [])
    await found.problems_are()
    assert found.orchestrator.statistics.tables_dropped == 1
    await found.running.stop()


async def test_a_problem_affects_only_its_table_and_ends_with_its_cause(
    store: MetadataStore, orchestrate: Orchestrate, tmp_path: Path
) -> None:
    found = await orchestrate(maintenance_every_s=0.05)
    (tmp_path / "bad").write_text("in the way")
    bad = await store.create_table("db", "bad", f"file://{tmp_path}/bad", DRAFT)
    await found.problems_are("location")
    good = await store.create_table("db", "good", f"file://{tmp_path}/good", DRAFT)
    await found.running.until((tmp_path / "good").is_dir, "the good table's directory")
    await store.add_schema_version(good.id, INVALID, expected=1)
    await found.problems_are("location", "schema version 2")
    assert await found.orchestrator.on_health()
    (tmp_path / "bad").unlink()
    await found.problems_are("schema version 2")
    assert found.orchestrator.known_problems[0].table == "db.good"
    await store.alter_table(good.id, status="dropping")
    await found.problems_are()
    assert await store.get_table_by_id(bad.id) is not None
    assert found.running.lane(NAME).counts.failed_deliveries == 0
    await found.running.stop()


async def test_unfinished_work_is_completed_at_the_start(
    store: MetadataStore, orchestrate: Orchestrate, tmp_path: Path
) -> None:
    tables = [await store.create_table("db", name, f"file://{tmp_path}/{name}", DRAFT) for name in ("a", "b", "c")]
    await store.alter_table(tables[0].id, status="dropping")
    await store.add_schema_version(tables[1].id, INVALID, expected=1)
    left, registered = tmp_path / "c" / "left.parquet", tmp_path / "c" / "registered.parquet"
    left.parent.mkdir()
    for path in (left, registered):
        path.write_bytes(b"PAR1")
    await store.record_intents([f"file://{left}", f"file://{registered}"], purpose=f"insert {tables[2].id}", owner="w")
    await store.add_files(tables[2].id, [file(f"file://{registered}")], intents_of="w")
    elsewhere = tmp_path / "elsewhere.parquet"
    elsewhere.write_bytes(b"PAR1")
    await store.record_intents([f"file://{elsewhere}"], purpose=f"insert {tables[2].id}", owner="w")
    found = await orchestrate()
    await found.gone(tables[0])
    await found.running.until(lambda: not left.exists(), "the abandoned upload deleted")
    await found.problems_are("schema version 2")
    assert registered.exists()
    assert (tmp_path / "b").is_dir()

    async def refused_alone() -> bool:
        async with store.consistent_read() as read:
            intents = [intent.path async for page in read.rows(UploadIntent) for intent in page]
        return intents == [f"file://{elsewhere}"]

    await found.running.until(refused_alone, "only the refused intent is left")
    refused = found.orchestrator.statistics.refused
    await found.running.until(lambda: list(refused) == [f"file://{elsewhere}"], "the refusal counted")
    assert elsewhere.exists()
    named = [problem.subject for problem in found.orchestrator.problems() if "lake.roots" in problem.reason]
    assert named == [f"file://{elsewhere}"]
    assert ("deletions_refused", 1) in [(metric.name, metric.value) for metric in found.orchestrator.metrics()]
    await found.running.stop()


async def test_a_refresh_finds_the_same_as_the_events(
    store: MetadataStore, orchestrate: Orchestrate, tmp_path: Path
) -> None:
    found = await orchestrate()
    (tmp_path / "bad").write_text("in the way")
    table = await store.create_table("db", "bad", f"file://{tmp_path}/bad", DRAFT)
    dropped_later = await store.create_table("db", "dropped_later", f"file://{tmp_path}/dropped_later", DRAFT)
    await found.problems_are("location")
    for _ in range(2):
        async with store.consistent_read() as snapshot:
            await found.orchestrator.on_refresh(snapshot)
        assert found.orchestrator.problems_reported == 1
    await found.running.stop()
    await store.alter_table(dropped_later.id, status="dropping")
    await store.drop_table(table.id)
    async with store.consistent_read() as snapshot:
        await found.orchestrator.on_refresh(snapshot)
    assert found.orchestrator.known_problems == []
    assert await store.list_tables() == []
