"""A component sees an engine's commit as one transaction: the commit's own row first, then all that it changed."""

from __future__ import annotations

from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

from astha.events import Event, Operation
from astha.subscribers.context import ComponentContext
from astha.testing import RecordingSubscriber
from registry.contract import MetadataStore
from registry.models import IcebergCommit, LakeTable, Row, TableFile, TableMetadata, TableStats
from tests.fixtures.daemons import RunDaemon
from tests.integration.components.commands.catalog.conftest import ROWS, Serve
from tests.integration.components.commands.catalog.test_writers import client, create

R = TypeVar("R", bound=Row)

KINDS = (LakeTable, TableMetadata, TableFile, TableStats, IcebergCommit)
BY_NAME = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))


def rows(events: list[Event[Row]], kind: type[R], *operations: Operation) -> list[R]:
    return [event.data for event in events if isinstance(event.data, kind) and event.operation in operations]


async def test_a_commit_is_one_transaction_to_a_component(
    serve: Serve, store: MetadataStore, context: ComponentContext, run_daemon: RunDaemon
) -> None:
    seen = RecordingSubscriber(*(kind.table for kind in KINDS), whole_transactions=True)
    running = await run_daemon(context.registry_url.get_secret_value(), {"seen": seen})
    await running.live()
    async with serve() as url:
        await client(url, lambda catalog: create(catalog, partition_spec=BY_NAME))

        def write(catalog: Catalog) -> list[Snapshot]:
            table = catalog.load_table("sales.orders")
            table.append(ROWS)
            with table.transaction() as change:
                change.update_schema().add_column("amount", LongType()).commit()
                change.append(pa.table({"id": [4], "name": ["a"], "amount": [1]}))
            table.delete("name = 'a'")
            return list(catalog.load_table("sales.orders").snapshots())

        snapshots = await client(url, write)
    await running.agree(store)
    await running.stop()

    created, *commits = seen.transactions
    assert [type(event.data) for event in created] == [LakeTable, IcebergCommit, TableMetadata]
    assert len(commits) == len(snapshots) == 3
    parent: int | None = None
    for events, snapshot in zip(commits, snapshots, strict=True):
        marker = events[0].data
        assert isinstance(marker, IcebergCommit)
        assert (marker.snapshot_id, marker.parent_snapshot_id) == (snapshot.snapshot_id, parent)
        assert snapshot.summary is not None
        assert marker.operation == snapshot.summary.operation.value
        assert marker.metadata_location.endswith(".metadata.json")
        parent = snapshot.snapshot_id
        added, removed = rows(events, TableFile, Operation.INSERT), rows(events, TableFile, Operation.DELETE)
        assert {file.operation_id for file in added} <= {f"iceberg-{snapshot.snapshot_id}"}
        assert (marker.added_files, marker.removed_files) == (len(added), len(removed))
        assert (marker.added_rows, marker.removed_rows) == (row_count(added), row_count(removed))
    assert [statistics(events) for events in commits] == [
        {"name=a": (1, 1), "name=b": (1, 1), "name=c": (1, 1)},
        {"name=a": (2, 2)},
        {"name=a": (0, 0)},
    ]
    totals = [rows(events, LakeTable, Operation.UPDATE)[-1].row_count for events in commits]
    assert totals == [3, 4, 2]
    versions = [[row.schema_version for row in rows(events, TableMetadata, Operation.INSERT)] for events in commits]
    assert versions == [[], [2], []]


def row_count(files: list[TableFile]) -> int:
    return sum(file.row_count for file in files)


def statistics(events: list[Event[Row]]) -> dict[str, Any]:
    """Returns the rows and files of the partitions that the transaction has changed, as it left them."""
    found = rows(events, TableStats, Operation.INSERT, Operation.UPDATE)
    return {row.partition_path: (row.row_count, row.file_count) for row in found}
