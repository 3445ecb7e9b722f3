"""The spans of components that work on the lake, from the commit that causes them to their effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astha.subscribers.context import ComponentContext, LakeSettings
from components.lib.storage_manager import StorageManager
from registry.contract import MetadataStore
from tests.fixtures.assembled_daemons import RunAssembled, tracing_to
from tests.fixtures.collector import Collector, ReceivedSpan
from tests.lake import SIMPLE, create_table, table_schema

FEWEST = 4
COMPONENTS: dict[str, Any] = {
    "iceberg_updater": {
        "tables": ["table_metadata", "table_files", "table_delete_files", "iceberg_commits"],
        "lane": {"health_timeout_s": 30},
    },
    "snapshotter": {
        "tables": ["table_metadata", "table_files", "table_snapshots"],
        "lane": {"health_timeout_s": 30},
    },
    "compactor": {
        "use": "tests.e2e.local_compactor:create",
        "tables": ["table_files", "table_stats", "table_delete_files"],
        "settings": {"check_every_s": 0.5, "defaults": {"compaction.min-inputs": FEWEST}},
    },
}


def parents(span: ReceivedSpan, collector: Collector) -> list[str]:
    """Returns the names of the spans above this one, all of its trace."""
    by_id = {found.span_id: found for found in collector.spans if found.trace_id == span.trace_id}
    names = []
    while span.parent_id:
        span = by_id[span.parent_id]
        names.append(span.name)
    return names


async def test_a_trace_reaches_iceberg_snapshots_and_compactions(
    url: str, store: MetadataStore, context: ComponentContext, lake: LakeSettings, warehouse: Path,
    collector: Collector, run_assembled: RunAssembled,
) -> None:  # fmt: skip
    table = await create_table(store, warehouse, schema=table_schema(SIMPLE))
    settings = {"warehouse": lake.warehouse}
    daemon = await run_assembled(url, COMPONENTS, tracing=tracing_to(collector), lake=settings)
    await daemon.live()
    async with StorageManager(context) as manager:
        await manager.insert("shop.orders", [{"id": 1, "name": "n", "day": None}], sync=True)
        updated: ReceivedSpan = await collector.until("commit to Iceberg", where=has_files)
        assert updated.attributes["astha.table"] == "shop.orders"
        assert (updated.attributes["astha.snapshots"], updated.error) == (1, None)
        await collector.until("commit", where=lambda span: bool(span.trace_id == updated.trace_id))
        await collector.until("deliver iceberg_updater", where=lambda span: bool(span.span_id == updated.parent_id))
        assert parents(updated, collector) == ["deliver iceberg_updater", "commit"]

        await store.request_snapshot(table.id, tag="first")
        snapshot: ReceivedSpan = await collector.until("snapshot")
        assert snapshot.attributes["astha.status"] == "created"
        assert snapshot.attributes["astha.tag"] == "first"
        (commit,) = [span for span in collector.named("commit") if span.span_id == snapshot.parent_id]
        assert commit.trace_id == snapshot.trace_id
        assert commit.attributes["astha.tables"] == ["table_snapshots"]

        for number in range(FEWEST):
            await manager.insert("shop.orders", [{"id": number, "name": "n", "day": None}], sync=True)
    compaction: ReceivedSpan = await collector.until("compaction", where=is_done)
    assert compaction.parent_id == ""
    assert compaction.attributes["astha.table"] == "shop.orders"
    assert compaction.attributes["astha.files_in"] >= FEWEST
    (group,) = [span for span in collector.named("merge group") if span.trace_id == compaction.trace_id]
    assert parents(group, collector) == ["compaction"]
    assert group.attributes["astha.files"] == compaction.attributes["astha.files_in"]


def has_files(span: ReceivedSpan) -> bool:
    return bool(span.attributes.get("astha.files"))


def is_done(span: ReceivedSpan) -> bool:
    return bool(span.attributes.get("astha.status") == "done")
