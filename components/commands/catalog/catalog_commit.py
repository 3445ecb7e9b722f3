"""One table's part of the registry's transaction, from what a commit changes."""

from __future__ import annotations

import msgspec

from components.commands.catalog.names import TableIdentity
from components.commands.catalog.schema_versions import VersionAfter
from components.lib.lake.engine_commits.table_change import TableChange
from components.lib.lake.iceberg.catalog import NAME
from components.lib.lake.storage.locations import canonical
from registry.inputs import CatalogCommit


class CommitTarget(msgspec.Struct, frozen=True, kw_only=True):
    table: TableIdentity
    expected: str | None  # the pointer that was read; None: the catalog does not have the table
    table_id: int
    engine: str | None  # as the client calls itself
    moves: bool = False  # to another location


def catalog_commit(target: CommitTarget, change: TableChange, versions: VersionAfter, location: str) -> CatalogCommit:
    """`location` is that of the new metadata file."""
    difference = change.difference
    return CatalogCommit(
        catalog=NAME,
        namespace=target.table.namespace,
        name=target.table.name,
        expected=target.expected,
        location=location,
        table_id=target.table_id,
        create=versions.draft if versions.is_first else None,
        table_location=canonical(change.metadata.location) if versions.is_first or target.moves else None,
        version=None if versions.is_first else versions.draft,
        version_expected=None if versions.is_first or versions.draft is None else versions.number - 1,
        added=difference.drafts(versions.by_spec, versions.number),
        removed=[file.path for file in difference.removed],
        deletes_added=difference.deletes_added,
        deletes_removed=difference.deletes_removed,
        required=difference.required,
        snapshot_id=change.snapshot_id,
        parent_snapshot_id=change.parent_snapshot_id,
        operation=change.operation,
        engine=change.engine or target.engine,
    )
