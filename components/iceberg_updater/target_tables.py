"""The registry's tables as the updater needs them for a commit, cached by table id: those that were used last."""

from __future__ import annotations

from collections import OrderedDict

import structlog

from components.iceberg_updater.committer import TargetTable, is_iceberg
from components.iceberg_updater.event_folding import TableEvents
from components.lib.lake.table_lookup import full_name
from registry.contract import MetadataStore
from registry.models import LakeTable, TableMetadata

log = structlog.get_logger(__name__)

_MAX_TABLES = 2_000


class TableGone(Exception):
    """The registry no longer has the table."""


class TargetTables:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._tables: OrderedDict[int, LakeTable] = OrderedDict()
        self._metadata: dict[int, dict[int, TableMetadata]] = {}
        self._ignored: set[int] = set()

    def name(self, table_id: int) -> str:
        table = self._tables.get(table_id)
        return f"table {table_id}" if table is None else full_name(table)

    def clear(self) -> None:
        self._tables.clear()
        self._metadata.clear()

    def forget(self, table_id: int) -> None:
        self._tables.pop(table_id, None)
        self._metadata.pop(table_id, None)

    async def resolve(self, events: TableEvents) -> TargetTable | None:
        """Returns the table with every schema version that the events need, as of now in the registry.

        Returns None if the table is not, or no longer, for Iceberg. Raises `TableGone` if the registry lost it.
        """
        table_id = events.table_id
        if events.changes_schema:
            self._tables.pop(table_id, None)
        known_table = self._tables.get(table_id)
        table = known_table or await self._store.get_table_by_id(table_id)
        if table is None:
            self.forget(table_id)
            self._ignored.discard(table_id)
            raise TableGone
        self._tables[table_id] = table
        self._tables.move_to_end(table_id)
        if len(self._tables) > _MAX_TABLES:
            self.forget(next(iter(self._tables)))
        known = self._metadata.setdefault(table_id, {})
        known.update((row.schema_version, row) for row in events.rows)
        for version in events.versions - known.keys():
            row = await self._store.get_table_metadata(table_id, version)
            if row is None:  # the table is being dropped: those events follow
                return None
            known[version] = row
        if not is_iceberg(known.values()):
            self._log_ignored(table, known)
            return None
        return TargetTable(table, dict(known), fresh=known_table is None)

    def _log_ignored(self, table: LakeTable, known: dict[int, TableMetadata]) -> None:
        if table.id not in self._ignored:
            self._ignored.add(table.id)
            log.info("table ignored: not an Iceberg format", table=full_name(table), format=known[max(known)].format)
