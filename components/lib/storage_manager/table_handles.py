"""Table handles: what an insert needs to know about its table, cached for a moment."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from astha.clock import LoopClock
from components.lib.lake.files import FileEngine, engine_of
from components.lib.lake.partitioning.partition_values import Partitioning
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.table_lookup import TableName, full_name
from components.lib.storage_manager.errors import NoSuchTable
from registry.contract import LakeTables
from registry.models import LakeTable

INITIAL_RATIO = 0.4

_MAX_TABLES = 1_000  # cached


@dataclass
class Compression:
    """The ratio of bytes in a file to bytes in memory, learned from the files written so far."""

    ratio: float = INITIAL_RATIO

    def learn(self, in_memory: int, in_file: int) -> None:
        if in_memory > 64 << 10:  # smaller files are mostly footer
            self.ratio += (in_file / in_memory - self.ratio) * 0.3


@dataclass(frozen=True)
class TableHandle:
    table: LakeTable
    schema: TableSchema
    partitioning: Partitioning
    engine: FileEngine
    compression: Compression = field(default_factory=Compression, compare=False)

    @property
    def name(self) -> str:
        return full_name(self.table)


class TableHandles:
    """Caches handles for a moment. Using a schema that is not the newest is no error: a table may contain files of
    several versions, and rows that don't match are tried again with the newest.
    """

    def __init__(self, store: LakeTables, clock: LoopClock, max_age_s: float) -> None:
        self._store = store
        self._clock = clock
        self._max_age_s = max_age_s
        self._known: OrderedDict[str | int, tuple[float, TableHandle]] = OrderedDict()

    async def get(self, table: str | int, *, fresh: bool = False) -> TableHandle:
        """Returns the handle of a table by its name or id. Raises `NoSuchTable`."""
        known = self._known.get(table)
        now = self._clock.monotonic()
        if known is not None and not fresh and now - known[0] < self._max_age_s:
            return known[1]
        found = await self._read(table, known[1] if known else None)
        self._known[table] = (now, found)
        self._known.move_to_end(table)
        if len(self._known) > _MAX_TABLES:
            self._known.popitem(last=False)
        return found

    def forget(self, table_id: int) -> None:
        for key in [key for key, known in self._known.items() if known[1].table.id == table_id]:
            del self._known[key]

    async def _read(self, table: str | int, before: TableHandle | None) -> TableHandle:
        if isinstance(table, int):
            row = await self._store.get_table_by_id(table)
        else:
            name = TableName.parse(table)
            row = await self._store.get_table(name.database, name.table)
        if row is None:
            raise NoSuchTable(f"there is no table {table!r}: `astha tables list` shows those that exist")
        if row.status != "active":
            raise NoSuchTable(f"table {table!r} is being dropped")
        metadata = await self._store.get_table_metadata(row.id)
        if metadata is None:
            raise NoSuchTable(f"table {table!r} was dropped a moment ago")
        if before is not None and before.table.id == row.id and before.schema.version == metadata.schema_version:
            return TableHandle(row, before.schema, before.partitioning, before.engine, before.compression)
        schema = TableSchema.of(metadata, table=full_name(row))
        return TableHandle(row, schema, Partitioning(schema), engine_of(schema, metadata.engine_config))
