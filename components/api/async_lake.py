"""`AsyncLake`: tables and topics of one registry, for programs that use asyncio.

async with astha.open("postgresql://astha@db/astha") as lake:
    await lake.create_table("shop.orders", {"id": "long!", "price": "decimal(9,2)"})
    await lake.insert("shop.orders", [{"id": 1, "price": "9.90"}], id="order-1")
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pyarrow as pa

from astha.errors import AsthaError
from astha.lake_locations import located
from astha.settings import load_settings
from astha.wiring import context
from components.api.arguments import Records, names_of, records_of
from components.api.scan import Scan
from components.commands.tables.create import create_table
from components.commands.tables.new_location import NewLocation
from components.lib.lake.iceberg import Stamp
from components.lib.lake.lake_session import LakeSession, open_lake
from components.lib.lake.schema.arrow_types import columns_of
from components.lib.lake.schema.table_definition import TableDefinition
from components.lib.lake.schema.type_syntax import parse_column
from components.lib.lake.table_lookup import TableName, full_name
from components.lib.storage_manager import StorageManager, StorageSettings
from components.lib.storage_manager.manager import Data
from components.lib.storage_manager.readers import Format, format_of, open_source
from components.snapshotter.cli_context import CliContext
from components.snapshotter.snapshot_requests import RegistryComparison, covers
from registry.migrate import migrate
from registry.models import LakeTable

if TYPE_CHECKING:
    from components.lib.streams.format import NewRecord, Record
    from components.lib.streams.writer import Producer

Columns: TypeAlias = "Mapping[str, str] | pa.Schema"

_UPDATER = "iceberg_updater"
_POLL_S = 0.05


class InsertSummary(msgspec.Struct, frozen=True):
    """``repeated``: an insert with the same id was made before, of ``rows`` rows; nothing was changed."""

    rows: int
    files: int
    repeated: bool = False


class AsyncLake:
    """Opened by `astha.open`, and used in the event loop that opened it. Safe for concurrent calls.

    `Lake` has the same methods and documents them. `consume` is an asynchronous iterator here.
    """

    def __init__(self, session: LakeSession, stack: AsyncExitStack) -> None:
        self._session = session
        self._store = session.store
        self._stack = stack
        self._opening = asyncio.Lock()
        self._storage: StorageManager | None = None
        self._appending: Producer | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._session.settings.registry.shown}>"

    async def tables(self) -> list[str]:
        """As `Lake.tables`."""
        return sorted(full_name(table) for table in await self._store.list_tables())

    async def create_table(
        self,
        table: str,
        columns: Columns,
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        location: str | None = None,
        if_not_exists: bool = False,
    ) -> None:
        """As `Lake.create_table`."""
        found = (
            columns_of(columns)
            if isinstance(columns, pa.Schema)
            else [parse_column(f"{name}:{kind}") for name, kind in columns.items()]
        )
        schema = TableDefinition(found, names_of(partition_by), names_of(sort_by)).schema()
        name = TableName.parse(table)
        settings = await located(self._session.settings, self._store, record=location is None)
        place = NewLocation(settings, name.database, name.table, location, probed=True)
        await create_table(self._store, place, schema, dict(properties or {}), if_not_exists)

    async def insert(
        self,
        table: str,
        data: Data | str | Path,
        *,
        id: str | None = None,  # noqa: A002
        format: Format | None = None,  # noqa: A002
    ) -> InsertSummary:
        """As `Lake.insert`."""
        manager = await self._manager()
        if isinstance(data, str | Path):
            path, kind = Path(data), format or format_of(str(data))
            schema = (await manager.target(table, fresh=True)).schema
            size = (await asyncio.to_thread(path.stat)).st_size
            with await asyncio.to_thread(path.open, "rb") as file:
                source = open_source(file, size, kind, schema, fill_missing=False)
                result = await manager.insert(table, source.batches, sync=True, insert_id=id)
        else:
            result = await manager.insert(table, data, sync=True, insert_id=id)
        if result.repeated is not None:
            return InsertSummary(result.repeated.row_count, result.repeated.file_count, repeated=True)
        return InsertSummary(result.rows, len(result.files))

    async def wait_visible(self, table: str, *, timeout_s: float = 60.0) -> None:
        """As `Lake.wait_visible`."""
        position, comparison = await self._store.position(), RegistryComparison(self._store)
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._is_visible(await self._session.find_table(table), position, comparison):
                    await self._session.clock.sleep(_POLL_S)
        except TimeoutError:
            raise TimeoutError(
                f"{table}: Iceberg does not have all inserts after {timeout_s:g} s: `astha status` shows whether a "
                f"daemon runs, and its {_UPDATER}"
            ) from None

    async def _is_visible(self, table: LakeTable, position: Any, comparison: RegistryComparison) -> bool:
        tables = await self._session.iceberg_tables()
        iceberg = await asyncio.to_thread(tables.load, table)
        if iceberg is None:
            return False
        stamp = Stamp.read(iceberg.metadata)
        return await covers(self._store, _UPDATER, stamp, position) or await comparison.equal(table, stamp)

    async def scan(
        self,
        table: str,
        *,
        columns: Sequence[str] = ("*",),
        where: str | None = None,
        snapshot: str | int | None = None,
        limit: int | None = None,
    ) -> Scan:
        """As `Lake.scan`."""
        row = await self._session.find_table(table)
        tables = await self._session.iceberg_tables()
        iceberg = await asyncio.to_thread(tables.load, row)
        if iceberg is None:
            raise AsthaError(f"{table} is not in the Iceberg catalog yet: a daemon with {_UPDATER} creates it")
        snapshot_id = snapshot if isinstance(snapshot, int) else None
        if isinstance(snapshot, str):
            found = iceberg.snapshot_by_name(snapshot)
            if found is None:
                raise AsthaError(f"{table} has no snapshot {snapshot!r}: `astha snapshot list {table}` shows them")
            snapshot_id = found.snapshot_id
        chosen: dict[str, Any] = {} if where is None else {"row_filter": where}
        return Scan(iceberg.scan(selected_fields=names_of(columns), snapshot_id=snapshot_id, limit=limit, **chosen))

    async def snapshot(self, table: str, tag: str | None = None, *, timeout_s: float = 600.0) -> int:
        """As `Lake.snapshot`."""
        row = await self._session.find_table(table)
        request = await self._store.request_snapshot(row.id, tag=tag, reason="astha.connect")
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    (found,) = await self._store.list_snapshots(row.id, after=request.id - 1, limit=1)
                    if found.status != "requested":
                        break
                    await self._session.clock.sleep(_POLL_S)
        except TimeoutError:
            why = await CliContext(self._session).why_unavailable() or "no result yet"
            raise TimeoutError(f"{table}: {why}: snapshot {request.id} stays requested") from None
        if found.snapshot_id is None:
            raise AsthaError(f"no snapshot of {table}: {found.reason}")
        return found.snapshot_id

    async def rollback(self, table: str, snapshot: str | int) -> int:
        """As `Lake.rollback`."""
        rollback = await CliContext(self._session).rollback()
        return (await rollback.roll_back(await self._session.find_table(table), str(snapshot))).rows

    async def topics(self) -> list[str]:
        """As `Lake.topics`."""
        return sorted(topic.name for topic in await self._store.list_topics())

    async def create_topic(self, topic: str, partitions: int = 1, *, retention_ms: int | None = None) -> None:
        """As `Lake.create_topic`."""
        await self._store.create_topic(topic, partitions, retention_ms=retention_ms)

    async def produce(self, topic: str, records: Records, *, partition: int | None = None) -> int:
        """As `Lake.produce`."""
        from components.commands.topics.produce_run import partition_chooser

        partitions = len(await self._store.list_partitions(topic))
        choose = partition_chooser(partitions, partition)
        parts: dict[int, list[NewRecord]] = defaultdict(list)
        for record in records_of(records):
            parts[choose(record, None)].append(record)
        producer = await self._producer()
        done = await asyncio.gather(*(producer.append(topic, number, part) for number, part in parts.items()))
        return sum(appended.count for appended in done)

    async def consume(
        self, topic: str, *, group: str | None = None, max_records: int | None = None
    ) -> AsyncGenerator[Record, None]:
        """As `Lake.consume`."""
        from components.lib.streams.consumer import Consumer
        from components.lib.streams.offset_spec import resolve_offsets
        from components.lib.streams.offsets import GroupOffsets
        from components.lib.streams.read_context import open_read_context

        settings = self._session.settings
        ends = {row.partition_id: row.high_watermark for row in await self._store.list_partitions(topic)}
        own = context(settings, self._store, self._session.clock)
        async with open_read_context(own, settings, follow=False) as reading:
            start = await (
                resolve_offsets(reading.reader, topic, sorted(ends), "earliest")
                if group is None
                else GroupOffsets(self._store).resume_offsets(group, topic, sorted(ends))
            )
            left = max_records
            async with Consumer(reading.prefetcher, topic, start, group=group, stop_offsets=ends) as consumer:
                while left != 0 and (polled := await consumer.poll(max_records=left, wait_s=0.0)) is not None:
                    left = None if left is None else left - len(polled.records)
                    for record in polled.records:
                        yield record
                    await consumer.commit()

    async def _manager(self) -> StorageManager:
        async with self._opening:
            if self._storage is None:
                own = context(self._session.settings, self._store, self._session.clock)
                self._storage = await self._stack.enter_async_context(StorageManager(own, StorageSettings()))
            return self._storage

    async def _producer(self) -> Producer:
        from components.lib.streams.agents import LeaseAgent
        from components.lib.streams.writer import Producer, SegmentWriter

        async with self._opening:
            if self._appending is None:
                clock = self._session.clock
                settings = await located(self._session.settings, self._store, record=True)
                own = context(settings, self._store, clock)
                agent = await self._stack.enter_async_context(LeaseAgent(self._store, clock))
                writer = await self._stack.enter_async_context(SegmentWriter(own, agent))
                self._appending = Producer(writer, clock)
            return self._appending


@asynccontextmanager
async def open_async(
    url: str | None = None,
    *,
    create: bool = False,
    warehouse: str | Path | None = None,
    config: str | Path | None = None,
) -> AsyncIterator[AsyncLake]:
    """As `astha.connect`. Leaving the block waits for what is in progress.

    >>> async def main() -> list[bytes]:
    ...     async with astha.open("sqlite:///other.db", create=True) as lake:
    ...         await lake.create_topic("visits")
    ...         await lake.produce("visits", ["first"])
    ...         return [record.value async for record in lake.consume("visits")]
    >>> asyncio.run(main())
    [b'first']
    """
    flags: dict[str, dict[str, str]] = {} if url is None else {"registry": {"url": url}}
    if warehouse is not None:
        flags["lake"] = {"warehouse": str(warehouse)}
    settings = load_settings(None if config is None else Path(config), flags, flags_from="argument")
    if create:
        await asyncio.to_thread(migrate, settings.registry.url.get_secret_value(), settings.registry.store)
    async with open_lake(settings) as session, AsyncExitStack() as stack:
        yield AsyncLake(session, stack)
