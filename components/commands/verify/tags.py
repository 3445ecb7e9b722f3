"""Snapshots of the registry against tags of Iceberg: what `table_snapshots` names must be there under that name.

Tags that others have set are theirs. Both sides are read one after the other while the snapshotter may be at work, so
what differs counts only if it differs in the same way at every one of a few looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyiceberg.table.metadata import TableMetadata

from components.commands.verify.report import Kind
from components.lib.lake.iceberg.stamp import TAG
from registry.models import TableSnapshot

Remark = tuple[Kind, str]

EXPIRING = "astha-expiring-"


def compare_tags(metadata: TableMetadata | None, rows: Iterable[TableSnapshot]) -> Iterator[Remark]:
    """``metadata`` is None if there is no Iceberg table."""
    by_id = {row.id: row for row in rows}
    for row in by_id.values():
        if row.status == "created" and (problem := _lost(metadata, row)) is not None:
            yield Kind.SNAPSHOT_LOST, f"{_name(row)}, snapshot {row.snapshot_id} (row {row.id}): {problem}"
    for name, row_id, snapshot_id in own_tags(metadata):
        found = by_id.get(row_id)
        if not _is_known(name, snapshot_id, found):
            state = "has no such row" if found is None else f"has it as {found.status} {_name(found)!r}"
            yield Kind.TAG_UNKNOWN, f"{name}, snapshot {snapshot_id}, of row {row_id}: the registry {state}"


def own_tags(metadata: TableMetadata | None) -> Iterator[tuple[str, int, int]]:
    """Name, row and snapshot of the tags that the snapshotter has set and nobody has moved."""
    if metadata is None:
        return
    for key, value in metadata.properties.items():
        parts = value.split()
        if key.startswith(TAG) and len(parts) == 2 and all(part.isdecimal() for part in parts):
            name, row_id, snapshot_id = key.removeprefix(TAG), *map(int, parts)
            ref = metadata.refs.get(name)
            if ref is not None and ref.snapshot_id == snapshot_id:
                yield name, row_id, snapshot_id


def _lost(metadata: TableMetadata | None, row: TableSnapshot) -> str | None:
    if metadata is None:
        return "there is no Iceberg table"
    ref = metadata.refs.get(_name(row))
    if ref is None:
        return "Iceberg has no such tag"
    if ref.snapshot_id != row.snapshot_id:
        return f"in Iceberg the tag names snapshot {ref.snapshot_id}"
    if metadata.snapshot_by_id(ref.snapshot_id) is None:
        return "Iceberg has the tag and not the snapshot"
    return None


def _is_known(name: str, snapshot_id: int, row: TableSnapshot | None) -> bool:
    """A tag is set before its row says created, and goes by another name from before its row says expired on."""
    if row is None:
        return False
    if name == f"{EXPIRING}{row.id}":
        return row.status == "created" or (row.status == "expired" and row.manifest_list is not None)
    return row.status == "requested" or (row.status == "created" and row.snapshot_id == snapshot_id)


def _name(row: TableSnapshot) -> str:
    return row.tag or f"snapshot-{row.id}"
