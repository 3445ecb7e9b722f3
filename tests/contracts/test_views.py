"""The dashboard's pages of the registry, on every backend."""

from __future__ import annotations

import msgspec
import pytest

from astha.server.views import Views
from registry.contract import MetadataStore
from registry.errors import Invalid, NotFound
from registry.inputs import CompactionOutcome, OffsetDraft, SnapshotDraft
from registry.json_text import JsonText
from tests.doubles.clock import ManualClock
from tests.samples import TABLE, decision, file, segment


@pytest.fixture
def views(store: MetadataStore, clock: ManualClock) -> Views:
    return Views(store, clock)


async def read(views: Views, name: str, /, **arguments: str) -> dict[str, object]:
    """Returns what a client gets."""
    found: dict[str, object] = msgspec.json.decode(
        msgspec.json.encode(msgspec.to_builtins(await views.read(name, arguments), str_keys=True))
    )
    return found


async def test_a_table_shows_its_files_snapshots_and_decisions(store: MetadataStore, views: Views) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    await store.add_files(table.id, [file("a", size=1_000), file("b", size=20_000)])
    await store.record_snapshot(table.id, SnapshotDraft(snapshot_id=1 << 62, timestamp=5, tag="q1"))
    await store.record_compactions([decision(table_id=table.id)])
    found = await read(views, "table", name="db.t")
    assert [(each["from_bytes"], each["files"]) for each in found["sizes"]] == [(0, 1), (16384, 1)]  # type: ignore[attr-defined]
    assert found["snapshots"][0]["snapshot_id"] == str(1 << 62)  # type: ignore[index]
    assert found["compactions"][0]["explanation"] == {"small": 5}  # type: ignore[index]
    with pytest.raises(NotFound):
        await read(views, "table", name="db.other")
    with pytest.raises(NotFound):
        await read(views, "table", name="no-dot")


async def test_files_before_compaction_are_those_that_were_merged(store: MetadataStore, views: Views) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    small = await store.add_files(table.id, [file("a", size=1_000), file("b", size=20_000), file("c", size=70_000)])
    await store.add_files(table.id, [file("d", size=300_000)])
    draft = msgspec.structs.replace(decision(table_id=table.id), input_files=3, input_bytes=91_000)
    row = await store.begin_compaction(draft, operation_id="one", owner="c", stale_after_ms=60_000)
    await store.swap_files(table.id, small, [file("abc", size=91_000)], operation_id="one")
    merged = (await read(views, "table", name="db.t"))["merged"]
    assert isinstance(merged, dict)
    assert merged["files"] == [{"from_bytes": 16384, "files": 3}], "no sizes are recorded: all have the mean size"
    assert (merged["estimated"], merged["missing"], merged["more"]) == (3, 0, False)
    result = JsonText('{"result":{"input_sizes":{"512":1,"16384":1,"65536":1}}}')
    outcome = CompactionOutcome(status="done", explanation=result, output_files=1, output_bytes=91_000)
    await store.finish_compaction(row.id, outcome, owner="c")
    merged = (await read(views, "table", name="db.t"))["merged"]
    assert isinstance(merged, dict)
    assert merged["files"] == [{"from_bytes": bound, "files": 1} for bound in (0, 16384, 65536)]
    assert (merged["estimated"], merged["missing"]) == (0, 0)
    again = await store.begin_compaction(draft, operation_id="two", owner="c", stale_after_ms=60_000)
    inputs = await store.get_files(table.id, [file(name).file_path for name in ("abc", "d")])
    await store.swap_files(table.id, inputs, [file("abcd", size=391_000)], operation_id="two")
    result = JsonText('{"result":{"input_sizes":{"65536":1,"262144":1},"merged_again":{"65536":1}}}')
    outcome = CompactionOutcome(
        status="done", explanation=result, input_files=2, input_bytes=391_000, output_files=1, output_bytes=391_000
    )
    await store.finish_compaction(again.id, outcome, owner="c")
    merged = (await read(views, "table", name="db.t"))["merged"]
    assert isinstance(merged, dict)
    assert merged["files"] == [{"from_bytes": bound, "files": 1} for bound in (0, 16384, 65536, 262144)]
    assert merged["missing"] == 0, "a result that was merged again is not missing"
    await store.remove_files(table.id, await store.get_files(table.id, [file("abcd").file_path]), reason="test")
    merged = (await read(views, "table", name="db.t"))["merged"]
    assert isinstance(merged, dict)
    assert merged["missing"] == 1


async def test_a_topic_shows_the_lag_of_its_groups(store: MetadataStore, views: Views) -> None:
    await store.create_topic("orders", 2)
    await store.add_segments([segment(0), segment(10)])
    await store.ensure_consumer_group("billing")
    await store.commit_offsets("billing", [OffsetDraft("orders", 0, 5)])
    found = await read(views, "topic", name="orders")
    assert [(group["group"], group["lag"]) for group in found["groups"]] == [("billing", 15)]  # type: ignore[attr-defined]
    assert [(part["partition"], part["end"]) for part in found["partitions"]] == [(0, 20), (1, 0)]  # type: ignore[attr-defined]
    with pytest.raises(NotFound):
        await read(views, "topic", name="nope")


async def test_lists_are_paged(store: MetadataStore, views: Views) -> None:
    for name in ("a", "b", "c"):
        await store.create_topic(name, 1)
        await store.create_table("db", name, f"s3://lake/{name}", TABLE)
    table = await store.get_table("db", "a")
    assert table is not None
    await store.record_compactions([decision(str(day), table_id=table.id) for day in range(3)])
    for view, key in (("topics", "topics"), ("tables", "tables"), ("compactions", "compactions")):
        first = await read(views, view, limit="2")
        after = first["after"]
        shown = after if isinstance(after, str) else msgspec.json.encode(after).decode()
        second = await read(views, view, limit="2", after=shown)
        assert (len(first[key]), len(second[key]), second["after"]) == (2, 1, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("view", "arguments"),
    [
        ("tables", {"limit": "0"}),
        ("tables", {"limit": "1000"}),
        ("tables", {"limit": "x"}),
        ("tables", {"order": "id"}),
        ("tables", {"after": "[1"}),
        ("tables", {"after": '["a"]'}),
        ("tables", {"order": "size", "after": '["a",1]'}),
        ("compactions", {"status": "odd"}),
        ("compactions", {"after": '["a",1]'}),
    ],
)
async def test_bad_arguments_are_refused(views: Views, view: str, arguments: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        await views.read(view, arguments)
