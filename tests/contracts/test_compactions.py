from __future__ import annotations

import asyncio

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.errors import Conflict, NotFound
from registry.inputs import CompactionDraft, CompactionOutcome
from registry.json_text import JsonText
from registry.models import Compaction, Savings
from tests.contracts.bad_input import BAD_COUNTS, Refused
from tests.contracts.contents import unchanged
from tests.doubles.clock import ManualClock
from tests.samples import TABLE, decision, file

LONG = 30_000


async def _begin(
    store: MetadataStore, draft: CompactionDraft, operation: str = "op-1", owner: str = "c-1"
) -> Compaction:
    return await store.begin_compaction(draft, operation_id=operation, owner=owner, stale_after_ms=LONG)


async def test_a_decision_is_kept_until_another_replaces_it(store: MetadataStore, clock: ManualClock) -> None:
    await store.record_compactions(
        [decision("d=1"), decision("d=2", status="declined", reason="young"), decision("d=1", strategy="sort")]
    )
    now = clock.now_ms()
    two, one = await store.list_compactions()
    assert one == Compaction(
        one.id, 1, "db.t", "d=1", "waiting", "event", "many small files", "sort", JsonText('{"small":5}'), None,
        5, 500, 0, 0, 0, None, None, False, None, now, None, None, now,
    )  # fmt: skip
    assert (two.partition_path, two.status, two.reason) == ("d=2", "declined", "young")
    clock.advance(10)
    async with unchanged(store):
        await store.record_compactions(
            [decision("d=1", input_files=6), decision("d=2", status="declined", reason="young")]
        )
    await store.record_compactions([decision("d=2", decided_at=now + 3, position=7)])
    newest = (await store.list_compactions())[0]
    assert (newest.id, newest.status, newest.reason, newest.decided_at) == (two.id, "waiting", None, now + 3)
    assert (newest.position, newest.updated_at) == (7, now + 10)


async def test_concurrent_decisions_about_the_same_partitions(store: MetadataStore, other: MetadataStore) -> None:
    drafts = [decision(str(number)) for number in range(30)]
    orders = [drafts, drafts[::-1]]
    await asyncio.gather(*((store, other)[n % 2].record_compactions(orders[n % 2]) for n in range(12)))
    assert len(await store.list_compactions()) == 30


async def test_beginning_turns_the_waiting_row_into_the_running_one(store: MetadataStore, clock: ManualClock) -> None:
    await store.record_compactions([decision("d=1", status="declined", reason="young"), decision("d=2")])
    clock.advance(10)
    draft = decision("d=1", trigger="manual", rule="asked for", strategy="binpack")
    running = await _begin(store, draft)
    assert (running.status, running.trigger, running.rule, running.reason) == ("running", "manual", "asked for", None)
    assert (running.owner, running.operation_id, running.started_at) == ("c-1", "op-1", clock.now_ms())
    assert len(await store.list_compactions()) == 2, "the row that stood"
    assert await _begin(store, draft) == running, "a repetition"
    await store.record_compactions([decision("d=1")])  # what comes after it may be decided meanwhile
    assert [row.status for row in await store.list_compactions()] == ["waiting", "running", "waiting"]
    assert (await _begin(store, decision("d=3"), "op-3")).id > running.id


async def test_a_partition_has_one_running_compaction(store: MetadataStore, other: MetadataStore) -> None:
    async def begin(number: int) -> Compaction | Conflict:
        try:
            return await _begin((store, other)[number % 2], decision("d=1"), f"op-{number}", f"c-{number}")
        except Conflict as conflict:
            return conflict

    found = await asyncio.gather(*(begin(number) for number in range(8)))
    (winner,) = [row for row in found if isinstance(row, Compaction)]
    losers = [row for row in found if isinstance(row, Conflict)]
    assert len(losers) == 7
    assert all(f"is being compacted by {winner.owner} (operation {winner.operation_id})" in str(one) for one in losers)
    assert {one.names for one in losers} == {(winner.owner,)}
    await _begin(store, decision("d=2"), "elsewhere")
    await _begin(store, decision("d=1", table_id=2), "another table")
    with pytest.raises(Conflict, match=r"operation elsewhere was begun before and is running"):
        await _begin(store, decision("d=5"), "elsewhere")


async def test_a_stale_compaction_is_aborted_and_replaced(store: MetadataStore, clock: ManualClock) -> None:
    first = await _begin(store, decision())
    clock.advance(LONG - 1)
    assert await store.renew_compactions([first.id], owner="c-1") == [
        msgspec.structs.replace(first, updated_at=clock.now_ms())
    ]
    clock.advance(LONG - 1)
    with pytest.raises(Conflict):
        await _begin(store, decision(), "op-2", "c-2")
    clock.advance(1)
    second = await _begin(store, decision(), "op-2", "c-2")
    assert second.id != first.id
    died = await store.get_compaction(first.id)
    assert died is not None
    assert (died.status, died.ended_at) == ("aborted", clock.now_ms())
    assert died.reason == "no sign of life; c-2 took over"
    assert await store.renew_compactions([first.id, second.id], owner="c-1") == []
    assert await store.renew_compactions([first.id, second.id, 10**9], owner="c-2") == [second]


async def test_an_outcome_is_recorded_once_and_may_get_details_later(store: MetadataStore, clock: ManualClock) -> None:
    row = await _begin(store, decision(strategy="auto"))
    clock.advance(10)
    done = CompactionOutcome(
        status="done",
        strategy="sort",
        explanation=JsonText('{"why":"x"}'),
        output_files=1,
        output_bytes=450,
        row_count=9,
    )
    with pytest.raises(Conflict, match=f"compaction {row.id} of c-1 is running: it can't become done"):
        await store.finish_compaction(row.id, done, owner="c-2")
    ended = await store.finish_compaction(row.id, done, owner="c-1")
    assert (ended.status, ended.strategy, ended.explanation) == ("done", "sort", '{"why":"x"}')
    assert (ended.output_files, ended.output_bytes, ended.row_count) == (1, 450, 9)
    assert ended.ended_at == ended.updated_at == clock.now_ms()
    clock.advance(10)
    again = await store.finish_compaction(row.id, CompactionOutcome(status="done"), owner="c-1")
    assert again == msgspec.structs.replace(ended, updated_at=clock.now_ms())
    with pytest.raises(Conflict, match="is done: it can't become failed"):
        await store.finish_compaction(row.id, CompactionOutcome(status="failed", reason="x"), owner="c-1")
    with pytest.raises(NotFound, match="compaction 1000000000 does not exist"):
        await store.finish_compaction(10**9, done, owner="c-1")
    await _begin(store, decision(), "op-2")  # the partition is free again


async def test_a_swap_finishes_its_compaction_in_the_same_transaction(store: MetadataStore, clock: ManualClock) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    files = await store.add_files(table.id, [file(name) for name in "abcd"])
    row = await _begin(store, decision(table_id=table.id))
    bystander = await _begin(store, decision("d=1", table_id=table.id), "op-2")
    clock.advance(10)
    await store.swap_files(table.id, files[:2], [file("e", rows=20, size=1_500)], operation_id="op-1")
    done = await store.get_compaction(row.id)
    assert done == msgspec.structs.replace(
        row, status="done", output_files=1, output_bytes=1_500, row_count=20,
        ended_at=clock.now_ms(), updated_at=clock.now_ms(),
    )  # fmt: skip
    assert await store.get_compaction(bystander.id) == bystander
    with pytest.raises(Conflict):
        await store.swap_files(table.id, files[:2], [file("f")], operation_id="op-2")
    assert await store.get_compaction(bystander.id) == bystander, "a swap that failed has ended nothing"
    await store.swap_files(table.id, files[2:], [], operation_id="op-2")
    last = await store.get_compaction(bystander.id)
    assert last is not None
    assert (last.status, last.output_files, last.output_bytes, last.row_count) == ("done", 0, 0, 0)


async def test_swaps_race_with_renewals_and_cancellations(store: MetadataStore, other: MetadataStore) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    files = await store.add_files(table.id, [file(str(n), partition=str(n)) for n in range(8)])
    rows = [await _begin(store, decision(str(n), table_id=table.id), f"op-{n}") for n in range(8)]
    ids = [row.id for row in rows]
    await asyncio.gather(
        *(store.swap_files(table.id, [files[n]], [file(f"{n}-new", partition=str(n))], operation_id=f"op-{n}")
          for n in range(8)),
        *(other.renew_compactions(ids[::way], owner="c-1") for way in (1, -1) * 4),
        *(other.request_cancel(table.id) for _ in range(4)),
    )  # fmt: skip
    assert {row.status for row in await store.list_compactions()} == {"done"}


async def test_a_compaction_that_swapped_after_it_was_aborted_as_stale_is_done(
    store: MetadataStore, clock: ManualClock
) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    files = await store.add_files(table.id, [file("a")])
    row = await _begin(store, decision(table_id=table.id))
    clock.advance(LONG)
    await _begin(store, decision(table_id=table.id), "op-2", "c-2")
    await store.swap_files(table.id, files, [file("b")], operation_id="op-1")
    ended = await store.finish_compaction(row.id, CompactionOutcome(status="done"), owner="c-1")
    assert (ended.status, ended.output_files, ended.reason) == ("done", 1, None)


async def test_cancelling(store: MetadataStore, clock: ManualClock) -> None:
    running = await _begin(store, decision("d=1"))
    await store.record_compactions([decision("d=2"), decision("d=3", status="declined"), decision(table_id=2)])
    clock.advance(10)
    asked = await store.request_cancel(1)
    assert [(row.partition_path, row.status, row.cancel_requested) for row in asked] == [
        ("d=1", "running", True), ("d=2", "cancelled", True),
    ]  # fmt: skip
    assert asked[0].updated_at == running.updated_at, "this does not count as a renewal"
    assert (asked[1].reason, asked[1].ended_at) == ("cancelled before it began", clock.now_ms())
    (renewed,) = await store.renew_compactions([running.id], owner="c-1")
    assert renewed.cancel_requested
    await store.finish_compaction(running.id, CompactionOutcome(status="cancelled", reason="asked for"), owner="c-1")
    assert await store.request_cancel(1) == []
    await store.record_compactions([decision("d=4"), decision("d=5")])
    assert [row.partition_path for row in await store.request_cancel(1, partition_path="d=5")] == ["d=5"]
    assert {row.status for row in await store.list_compactions(table_id=2)} == {"waiting"}


async def test_the_newest_decisions_are_listed_first(store: MetadataStore, clock: ManualClock) -> None:
    for number in range(3):
        await store.record_compactions([decision(f"{number}{half}") for half in "ab"])
        clock.advance(10)
    began = clock.now_ms()
    await _begin(store, decision("1a", table_id=2))
    rows = await store.list_compactions()
    assert [row.partition_path for row in rows] == ["1a", "2b", "2a", "1b", "1a", "0b", "0a"]
    paged, before = [], None
    while page := await store.list_compactions(before=before, limit=2):
        paged += page
        before = (page[-1].decided_at, page[-1].id)
    assert paged == rows
    assert await store.list_compactions(table_id=1) == rows[1:]
    assert await store.list_compactions(statuses=["running", "done"]) == rows[:1]
    assert await store.list_compactions(started_since=began) == rows[:1]
    assert await store.list_compactions(started_since=began + 1) == []
    assert await store.get_compaction(rows[0].id) == rows[0]
    assert await store.get_compaction(10**9) is None


async def test_savings_are_sums_over_done_compactions(store: MetadataStore) -> None:
    for number, (table_id, status) in enumerate([(1, "done"), (1, "done"), (2, "done"), (1, "failed"), (3, "aborted")]):
        row = await _begin(store, decision(str(number), table_id=table_id), f"op-{number}")
        outcome = CompactionOutcome(status=status, output_files=1, output_bytes=400, row_count=50)  # type: ignore[arg-type]
        await store.finish_compaction(row.id, outcome, owner="c-1")
    assert await store.get_savings() == [
        Savings(1, "db.t", 2, 10, 1_000, 2, 800, 100),
        Savings(2, "db.t", 1, 5, 500, 1, 400, 50),
    ]
    assert await store.get_savings(table_id=2) == [Savings(2, "db.t", 1, 5, 500, 1, 400, 50)]
    assert await store.get_savings(table_id=3) == []


async def test_pruning(store: MetadataStore, clock: ManualClock) -> None:
    running = await _begin(store, decision("run"))
    done = await _begin(store, decision("done"), "op-2")
    await store.finish_compaction(done.id, CompactionOutcome(status="done"), owner="c-1")
    await store.record_compactions([decision(str(number)) for number in range(5)])
    clock.advance(10)
    await store.record_compactions([decision("young", status="declined")])
    assert await store.prune_compactions(11) == 0
    assert await store.prune_compactions(10, limit=3) == 3
    assert await store.prune_compactions(10) == 2
    assert {row.partition_path for row in await store.list_compactions()} == {"run", "done", "young"}
    assert await store.prune_compactions(0, statuses=["done", "failed"]) == 1
    assert await store.list_compactions(statuses=["running"]) == [running]


async def test_the_journal_outlives_its_table(store: MetadataStore) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    await store.record_compactions([decision(table_id=table.id)])
    await store.drop_table(table.id)
    assert len(await store.list_compactions(table_id=table.id)) == 1


async def test_empty_calls_do_nothing(store: MetadataStore) -> None:
    async with unchanged(store):
        await store.record_compactions([])
        assert await store.renew_compactions([], owner="c") == []
        assert await store.request_cancel(5) == []


async def test_bad_input_is_named_and_nothing_written(store: MetadataStore, refused: Refused) -> None:
    row = await _begin(store, decision())
    async with unchanged(store):
        for number in BAD_COUNTS:
            await refused(store.record_compactions([decision("a"), decision(table_id=number)]), "table_id", number)
            await refused(store.record_compactions([decision(input_bytes=number)]), "input_bytes", number)
            await refused(store.renew_compactions([1, number], owner="c"), "id", number)
            await refused(store.request_cancel(number), "table_id", number)
            await refused(store.list_compactions(limit=number), "limit", number)
            await refused(store.list_compactions(before=(1, number)), "before", number)
            await refused(store.get_savings(table_id=number), "table_id", number)
            await refused(store.prune_compactions(number), "older_than_ms", number)
            outcome = CompactionOutcome(status="done", row_count=number)
            await refused(store.finish_compaction(row.id, outcome, owner="c-1"), "row_count", number)
        for text in ("", "nul\0", "\ud800"):
            await refused(store.record_compactions([decision(rule=text)]), "rule", text)
            await refused(_begin(store, decision("b"), owner=text), "owner", text)
            await refused(_begin(store, decision("b"), operation=text), "operation_id", text)
        await refused(store.record_compactions([decision(status="running")]), "status", "running")
        await refused(store.record_compactions([decision(trigger="x")]), "trigger", "x")
        await refused(store.record_compactions([decision("x" * 2_049)]), "partition_path", "x" * 2_049)
        await refused(store.prune_compactions(0, statuses=["running"]), "statuses", "running")
        outcome = CompactionOutcome(status="waiting")  # type: ignore[arg-type]
        await refused(store.finish_compaction(row.id, outcome, owner="c-1"), "status", "waiting")
