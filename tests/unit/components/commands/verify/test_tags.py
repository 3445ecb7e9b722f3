"""Rows of `table_snapshots` against Iceberg's tags."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from components.commands.verify.report import DifferenceKind
from components.commands.verify.tags import compare_tags
from registry.json_text import EMPTY_OBJECT
from registry.models import SnapshotStatus, TableSnapshot


def row(status: SnapshotStatus, tag: str = "daily", snapshot_id: int = 77) -> TableSnapshot:
    return TableSnapshot(5, 1, snapshot_id, 0, "m.avro", EMPTY_OBJECT, 0, "manual", status, tag, None, 0, 0)


def metadata(**refs: int) -> Any:
    """Iceberg's metadata with these tags, none of which is recorded as the snapshotter's."""
    named = {name.replace("_", "-"): SimpleNamespace(snapshot_id=snapshot_id) for name, snapshot_id in refs.items()}
    return cast("Any", SimpleNamespace(refs=named, properties={}, snapshot_by_id=lambda snapshot_id: object()))


def test_a_snapshot_with_its_tag_is_not_lost() -> None:
    assert list(compare_tags(metadata(daily=77), [row("created")])) == []


def test_a_snapshot_without_its_tag_is_lost() -> None:
    ((kind, text),) = compare_tags(metadata(), [row("created")])
    assert kind is DifferenceKind.SNAPSHOT_LOST
    assert "daily" in text


def test_a_snapshot_that_is_being_expired_is_not_lost() -> None:
    """Its tag is renamed first; a daemon that is killed then leaves the row as it is until the next one continues."""
    assert list(compare_tags(metadata(astha_expiring_5=77), [row("created")])) == []


def test_a_tag_that_names_another_snapshot_is_a_loss() -> None:
    ((kind, text),) = compare_tags(metadata(daily=78), [row("created")])
    assert kind is DifferenceKind.SNAPSHOT_LOST
    assert "78" in text
