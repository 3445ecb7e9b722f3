"""The schema version of the registry that a table has after a commit."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from components.lib.lake.engine_commits.adopted_schema import adopted_version, versions_by_spec
from components.lib.lake.engine_commits.errors import CommitConflict
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata
from components.lib.lake.engine_commits.table_change import TableChange
from components.lib.lake.iceberg.stamp import SCHEMA_VERSION
from registry.contract import MetadataStore
from registry.inputs import TableDraft


class VersionAfter(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    draft: TableDraft | None = None  # None: the commit does not change it
    by_spec: Mapping[int, int] = {}  # of files with another partition spec than the current one

    @property
    def is_first(self) -> bool:
        return self.draft is not None and self.number == 1


class SchemaVersions:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def after(self, change: TableChange, before: IcebergMetadata | None, table_id: int | None) -> VersionAfter:
        """`table_id` is None if the registry does not have the table yet. Raises `CommitConflict` if the registry has a
        schema version that is not in Iceberg yet, and this commit brings another one.
        """
        if table_id is None or before is None:
            return VersionAfter(number=1, draft=adopted_version(change.metadata))
        current = _stamped(before)
        by_spec: Mapping[int, int] = {}
        if change.difference.spec_ids - {change.metadata.default_spec_id}:
            by_spec = versions_by_spec(change.metadata, await self._store.list_table_metadata(table_id))
        if not change.needs_version:
            return VersionAfter(number=current, by_spec=by_spec)
        previous = await self._store.get_table_metadata(table_id)
        if previous is not None and previous.schema_version != current:
            raise CommitConflict(
                f"the registry has schema version {previous.schema_version}, which Iceberg does not have yet: try again"
            )
        draft = adopted_version(change.metadata, before, previous)
        return VersionAfter(number=current + 1, draft=draft, by_spec=by_spec)


def _stamped(metadata: IcebergMetadata) -> int:
    found = metadata.properties.get(SCHEMA_VERSION, "")
    return int(found) if found.isdecimal() else 1
