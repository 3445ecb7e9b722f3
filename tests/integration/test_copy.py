"""A registry is copied completely or not at all, and unchanged."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import text

from registry import copy
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.copy import COPIED, copy_registry
from registry.engines import StoreSettings, parse_url, sync_engine
from registry.errors import Conflict
from registry.inputs import CompactionDraft, FileDraft, SegmentDraft, TableDraft
from registry.json_text import JsonText
from registry.migrate import migrate
from registry.models import (
    LAKE_IDENTITY,
    PUBLISHED,
    UNPUBLISHED,
    DaemonLease,
    LedgerEntry,
    RunningDaemon,
    Segment,
    SourceIdentity,
)
from tests.integration.registries import NewUrl, contents, copy_server, fill, new_url

__all__ = ["copy_server", "new_url"]  # fixtures

EVERYTHING = (*PUBLISHED, *UNPUBLISHED)
WAYS = [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite"), ("postgres", "postgres")]

Open = Callable[[str], Awaitable[MetadataStore]]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Migrates and opens; closes at the end."""
    async with AsyncExitStack() as stack:

        async def open_migrated(url: str) -> MetadataStore:
            await asyncio.to_thread(migrate, url)
            store = await open_store(url)
            stack.push_async_callback(store.close)
            return store

        yield open_migrated


def test_everything_but_the_daemons_state_is_copied() -> None:
    assert set(COPIED) == {*PUBLISHED, *UNPUBLISHED} - {LedgerEntry, DaemonLease, RunningDaemon, SourceIdentity}


async def test_a_copy_back_is_equal_row_by_row(new_url: NewUrl, opened: Open) -> None:
    first, second, third = [await opened(new_url(kind)) for kind in ("sqlite", "postgres", "sqlite")]
    await fill(first)
    seen: list[tuple[str, int, int]] = []

    counts = await copy_registry(first, second, lambda *step: seen.append(step), page=4)
    await copy_registry(second, third)

    original = await contents(first, COPIED)
    assert all(original.values()), "a kind of row is missing from the test itself"
    assert await contents(second, COPIED) == original
    assert await contents(third, COPIED) == original
    assert counts == {**{table: len(rows) for table, rows in original.items()}, SourceIdentity.table: 1}
    for store in (second, third):
        found = await store.get_source_identity(LAKE_IDENTITY)
        assert found == await first.get_source_identity(LAKE_IDENTITY) is not None
    assert [step for step in seen if step[1] == 0] == [(table, 0, total) for table, total in counts.items()]
    assert all((table, total, total) in seen for table, total in counts.items())


@pytest.mark.parametrize(("from_kind", "to_kind"), WAYS)
async def test_new_ids_are_above_the_copied_ones(new_url: NewUrl, opened: Open, from_kind: str, to_kind: str) -> None:
    source, target = await opened(new_url(from_kind)), await opened(new_url(to_kind))
    await fill(source)
    await copy_registry(source, target)
    highest = {table: max(row.id for row in rows)  # type: ignore[attr-defined]
               for table, rows in (await contents(source, COPIED)).items() if hasattr(rows[0], "id")}  # fmt: skip

    await target.add_segment(SegmentDraft("events", 0, 10_000, 10_001, 2, 1, "b", "k"))
    table = await target.create_table("db", "later", "s3://lake/later", TableDraft(schema=JsonText("{}")))
    draft = FileDraft(file_path="s3://lake/later/1", file_size=1, row_count=1, schema_version=1)
    (file,) = await target.add_files(table.id, [draft])
    snapshot = await target.request_snapshot(table.id)
    await target.remove_files(table.id, [file], reason="test")
    segment = await target.find_segment_for_offset("events", 0, 10_000)
    (awaiting,) = await target.list_files_awaiting_deletion(table_id=table.id)

    assert segment is not None
    assert segment.id > highest["segments"]
    assert table.id > highest["tables"]
    assert file.id > highest["table_files"]
    assert snapshot.id > highest["table_snapshots"]
    assert awaiting.id > highest["files_awaiting_deletion"]
    await target.record_compactions([CompactionDraft(table_id=table.id, table_name="db.later", rule="small")])
    (decided,) = await target.list_compactions(table_id=table.id)
    assert decided.id > highest["compactions"]


@pytest.mark.parametrize(("from_kind", "to_kind"), WAYS)
async def test_failing_in_the_middle_leaves_nothing_and_can_be_repeated(
    new_url: NewUrl, opened: Open, from_kind: str, to_kind: str
) -> None:
    source, target = await opened(new_url(from_kind)), await opened(new_url(to_kind))
    await fill(source)

    def fail(table: str, done: int, _total: int) -> None:
        if table == "table_files" and done:
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk is full"):
        await copy_registry(source, target, fail, page=2)

    assert not any((await contents(target, EVERYTHING)).values())
    await copy_registry(source, target)
    assert await contents(target, COPIED) == await contents(source, COPIED)


@pytest.mark.parametrize("to_kind", ["sqlite", "postgres"])
async def test_cancelled_in_the_middle_leaves_nothing_and_can_be_repeated(
    new_url: NewUrl, opened: Open, to_kind: str
) -> None:
    source, target = await opened(new_url("sqlite")), await opened(new_url(to_kind))
    await fill(source)
    half_way = asyncio.Event()

    def tell(table: str, _done: int, _total: int) -> None:
        if table == "table_files":
            half_way.set()

    copying = asyncio.create_task(copy_registry(source, target, tell, page=1))
    await half_way.wait()
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying

    assert not any((await contents(target, EVERYTHING)).values())
    await copy_registry(source, target)
    assert await contents(target, COPIED) == await contents(source, COPIED)


@pytest.mark.parametrize("from_kind", ["sqlite", "postgres"])
async def test_concurrent_writers_do_not_affect_the_copy(new_url: NewUrl, opened: Open, from_kind: str) -> None:
    url = new_url(from_kind)
    source, target = await opened(url), await opened(new_url("sqlite"))
    await fill(source)
    before = await contents(source, COPIED)
    writer = await opened(url)
    writes: list[asyncio.Task[None]] = []

    async def write(number: int) -> None:
        await writer.create_topic(f"during-{number}", 1)
        await writer.add_segment(SegmentDraft(f"during-{number}", 0, 0, 9, 10, 1, "b", "k"))
        await writer.delete_segments_before("events", number % 3, 30 + number)
        await writer.drop_table(table_id=2) if number == 0 else None

    def start_a_write(_table: str, done: int, _total: int) -> None:
        if done:
            writes.append(asyncio.create_task(write(len(writes))))

    await copy_registry(source, target, start_a_write, page=3)
    await asyncio.gather(*writes)

    assert len(writes) > 10
    assert await contents(target, COPIED) == before
    assert await contents(source, COPIED) != before


async def test_a_target_that_is_not_empty_is_refused(new_url: NewUrl, opened: Open) -> None:
    source, target = await opened(new_url("sqlite")), await opened(new_url("postgres"))
    await fill(source)
    await target.ensure_consumer_group("mine")

    with pytest.raises(Conflict, match=r"not empty.*consumer_groups"):
        await copy_registry(source, target)

    held = await contents(target, EVERYTHING)
    assert [table for table, rows in held.items() if rows] == ["consumer_groups"]


@pytest.mark.parametrize("to_kind", ["sqlite", "postgres"])
async def test_ledger_and_daemons_are_not_copied(new_url: NewUrl, opened: Open, to_kind: str) -> None:
    url = new_url("sqlite")
    source, target = await opened(url), await opened(new_url(to_kind))
    with sync_engine(parse_url(url), StoreSettings()).connect() as connection:
        connection.execute(text("INSERT INTO ledger VALUES ('iceberg', 7, NULL, '[]', 'live', 0, NULL, 1, 'astha')"))
        connection.execute(
            text("INSERT INTO daemons VALUES ('me', 'astha', 'h', 1, 'leader', 'sqlite', '[]', '1', 1, 1)")
        )
        connection.execute(text("INSERT INTO daemon_lease VALUES ('daemon', 'me', 3, 1, 2)"))
        connection.execute(text("INSERT INTO source_identity VALUES ('astha', '1/1', 1)"))

    await copy_registry(source, target)

    assert not any((await contents(target, EVERYTHING)).values())


@pytest.mark.parametrize("to_kind", ["sqlite", "postgres"])
async def test_missing_rows_are_an_error_and_the_target_stays_empty(
    new_url: NewUrl, opened: Open, to_kind: str
) -> None:
    source_url, target_url = new_url("sqlite"), new_url(to_kind)
    source, target = await opened(source_url), await opened(target_url)
    await fill(source)
    swallow = {
        "sqlite": ["CREATE TRIGGER swallow AFTER INSERT ON table_stats BEGIN DELETE FROM table_stats; END"],
        "postgres": ["CREATE RULE swallow AS ON INSERT TO table_stats DO INSTEAD NOTHING"],
    }
    with sync_engine(parse_url(target_url), StoreSettings()).connect() as connection:
        for statement in swallow[to_kind]:
            connection.exec_driver_sql(statement)

    with pytest.raises(Conflict, match="table_stats has 7 rows in the source, 7 were read and 0 arrived") as caught:
        await copy_registry(source, target)

    assert caught.value.names == ("table_stats",)
    assert not any((await contents(target, EVERYTHING)).values())


@pytest.mark.slow
@pytest.mark.parametrize("to_kind", ["sqlite", "postgres"])
async def test_killed_in_the_middle_leaves_nothing_and_can_be_repeated(
    new_url: NewUrl, opened: Open, to_kind: str
) -> None:
    source_url, target_url = new_url("sqlite"), new_url(to_kind)
    source, target = await opened(source_url), await opened(target_url)
    await fill(source, segments=500)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _COPY_AND_HANG, source_url, target_url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"half-way\n"
    child.send_signal(signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL

    assert not any((await contents(target, EVERYTHING)).values())
    await copy_registry(source, target)
    copied = await contents(target, COPIED)
    assert copied == await contents(source, COPIED)
    assert len(copied[Segment.table]) == 501


_COPY_AND_HANG = f"""
import asyncio, sys
from {copy.__name__} import copy_registry
from {open_store.__module__} import open_store

def hang(table, done, total):
    if table == "segments" and done > total // 2:
        print("half-way", flush=True)
        sys.stdin.read()

async def main():
    await copy_registry(await open_store(sys.argv[1]), await open_store(sys.argv[2]), hang, page=10)

asyncio.run(main())
"""
