"""What a commit changes in a table: its files and its schema version, with the stamp for them (decision 0010)."""

from __future__ import annotations

from typing import cast

import msgspec
from pyiceberg.io import FileIO

from components.lib.lake.engine_commits.adopted_schema import needs_version
from components.lib.lake.engine_commits.errors import InvalidCommit
from components.lib.lake.engine_commits.file_difference import FileDifference, read_difference
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata, StoredSnapshot
from components.lib.lake.engine_commits.manifest_lists import ManifestLists
from components.lib.lake.iceberg.stamp import REGISTRY, SCHEMA_ID, SCHEMA_VERSION, SNAPSHOT, TABLE_ID, Stamp
from registry.models import CatalogOperation

_OPERATIONS = ("append", "overwrite", "delete", "replace")


class TableChange(msgspec.Struct, frozen=True, kw_only=True):
    """`metadata` is the new one, without stamp. ``snapshot_id`` is None unless the commit moves `main`."""

    metadata: IcebergMetadata
    stamp: Stamp
    difference: FileDifference
    operation: CatalogOperation
    snapshot_id: int | None
    parent_snapshot_id: int | None
    engine: str | None
    needs_version: bool

    def stamped(self, *, schema_version: int, table_id: int, registry: str) -> IcebergMetadata:
        """Returns the metadata to write. ``schema_version`` is the one that the table has after the commit.

        The position stays: it says which transactions of the registry the updater has applied.
        """
        metadata = self.metadata
        current = metadata.current_snapshot_id
        stamp = Stamp(self.difference.applied_to(self.stamp.digest), current, self.stamp.position)
        properties = {
            **{name: value for name, value in metadata.properties.items() if name != SNAPSHOT},
            **stamp.properties(),
            SCHEMA_VERSION: str(schema_version),
            SCHEMA_ID: str(metadata.current_schema_id),
            TABLE_ID: str(table_id),
            REGISTRY: registry,
        }
        return msgspec.structs.replace(metadata, properties=properties)


def read_change(
    io: FileIO, base: IcebergMetadata | None, metadata: IcebergMetadata, lists: ManifestLists | None = None
) -> TableChange:
    """Reads what the commit changes since the table's stamp, from manifests. ``base`` is None for a new table.

    Raises what `read_difference` raises, and `InvalidCommit` if the stamp's snapshot has expired.
    """
    stamp = Stamp.parse({} if base is None else base.properties)
    old = _stamped_snapshot(base, metadata, stamp)
    new = metadata.current_snapshot
    difference = read_difference(io, metadata, old, new, lists)
    moved = None if base is None else base.current_snapshot_id
    snapshot = new if metadata.current_snapshot_id != moved else None
    return TableChange(
        metadata=metadata,
        stamp=stamp,
        difference=difference,
        operation=_operation(base, metadata, difference),
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        parent_snapshot_id=None if snapshot is None else snapshot.fields.parent_snapshot_id,
        engine=None if snapshot is None else _engine(snapshot),
        needs_version=needs_version(base, metadata),
    )


def _stamped_snapshot(base: IcebergMetadata | None, metadata: IcebergMetadata, stamp: Stamp) -> StoredSnapshot | None:
    if base is None or stamp.snapshot is None:
        return None
    found = base.snapshots.get(stamp.snapshot) or metadata.snapshots.get(stamp.snapshot)
    if found is None:
        raise InvalidCommit(
            f"snapshot {stamp.snapshot}, the last one that the registry knows, has expired, so the change since then "
            "can't be determined: the operator has to run `astha iceberg revert` for this table"
        )
    return found


def _operation(base: IcebergMetadata | None, metadata: IcebergMetadata, difference: FileDifference) -> CatalogOperation:
    """Returns the operation of the only new snapshot on `main`, or what the change of files amounts to."""
    before = None if base is None else base.current_snapshot_id
    new = metadata.current_snapshot
    if metadata.current_snapshot_id == before:
        return "metadata" if difference.is_empty else "overwrite"
    is_next = new is not None and new.fields.parent_snapshot_id == before
    if new is not None and is_next and (base is None or new.snapshot_id not in base.snapshots):
        named = new.summary().get("operation")
        if named in _OPERATIONS:
            return cast("CatalogOperation", named)
    if difference.removed:
        return "overwrite" if difference.added else "delete"
    return "append" if difference.added and not difference.deletes_added else "overwrite"


def _engine(snapshot: StoredSnapshot) -> str | None:
    summary = snapshot.summary()
    name, version = summary.get("engine-name"), summary.get("engine-version")
    return f"{name} {version}" if name and version else name
