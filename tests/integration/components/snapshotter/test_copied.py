"""A copied registry owns the same Iceberg tables with their history."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from astha.cli.root import main
from components.lib.lake.storage.objects import Objects
from components.snapshotter.cli_context import call
from components.snapshotter.file_cleanup import FileCleanup
from components.snapshotter.policy import SnapshotPolicy
from components.snapshotter.rollback import Rollback
from registry.models import TableFile
from tests.integration.components.snapshotter.conftest import Lake, Open
from tests.integration.registries import NewUrl, copy_server, new_url

__all__ = ["copy_server", "new_url"]  # fixtures


@pytest.mark.parametrize("to_kind", ["sqlite", "postgres"])
async def test_history_tags_and_files_are_copied(lake: Lake, new_url: NewUrl, opened_lake: Open, to_kind: str) -> None:
    table = await lake.create(properties={"snapshot.grace": "1h"})
    old = await lake.insert(table, 1, 2)
    named = await lake.snapshot(table, "v1")
    await lake.compact(table, old, 1, 2)
    await lake.insert(table, 3)
    await lake.update()
    await lake.insert(table, 4)  # not in Iceberg when the registry is copied
    target = new_url(to_kind)
    copied = await asyncio.to_thread(CliRunner().invoke, main, ["registry", "copy", lake.url, target, "--json"])
    assert copied.exit_code == 0, copied.output
    counts = json.loads(copied.stdout)["rows"]
    assert (counts["iceberg_tables"], counts["iceberg_namespace_properties"], counts["source_identity"]) == (1, 1, 1)

    new = await opened_lake(target)
    assert new.tags(table) == {"v1": named.snapshot_id}
    assert new.load(table).metadata_location == lake.load(table).metadata_location
    rollback = await Rollback(new.store, new.tables, call, Objects(new.settings)).plan(table, "v1")
    assert [draft.file_path for draft in rollback.restored] == [file.file_path for file in old]

    cleanup = FileCleanup(
        new.store, new.tables, call, Objects(new.settings), new.clock, defaults=SnapshotPolicy(grace_ms=0)
    )
    new.clock.advance(timedelta(hours=2))
    (report,) = await cleanup.clean(dry_run=True)
    assert [decision.reason for decision in report.decisions] == [f"Iceberg snapshot {named.snapshot_id} needs it"]

    async with new.store.consistent_read() as snapshot:  # a daemon's first step on a registry without a ledger
        await new.updater.on_refresh(snapshot)
    assert new.ids(table) == [1, 2, 3, 4]
    assert new.ids(table, named.snapshot_id) == [1, 2]
    await new.require_agreement(table)
    await cleanup.clean()
    assert _there(old) == [True]


async def test_a_position_of_another_stream_is_ignored(lake: Lake, new_url: NewUrl, opened_lake: Open) -> None:
    """Stamps have positions of the old registry's stream, which may be far ahead of the new one."""
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.update()
    ahead = await lake.store.position() + 10**12
    lake.tables.commit(table, lambda commit: commit.set_stamp(ahead))  # type: ignore[arg-type]
    await lake.insert(table, 2)  # not in Iceberg yet
    target = new_url("sqlite")
    copied = await asyncio.to_thread(CliRunner().invoke, main, ["registry", "copy", lake.url, target])
    assert copied.exit_code == 0, copied.output
    new = await opened_lake(target, ledger=False)
    asked = await new.request(table, "v1")
    await new.tell()
    async with new.store.consistent_read() as snapshot:
        await new.updater.on_refresh(snapshot)
    done = await new.answered(asked)
    assert done.status == "created"
    assert new.ids(table, done.snapshot_id) == [1, 2], "everything before the request"


def _there(files: list[TableFile]) -> list[bool]:
    return [Path(file.file_path.removeprefix("file://")).exists() for file in files]
