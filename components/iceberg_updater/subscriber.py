"""The subscriber: everything that waits becomes at most one Iceberg commit a table.

PyIceberg blocks, so it works on a thread of its own, one call after the other: the loop never waits for it, and what a
cancelled call still does is finished before its successor begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from astha.errors import Reject, Retry
from astha.events import Commit, Event
from astha.subscribers import Measure, Surroundings
from components.iceberg_updater.changes import TableEvents, by_table
from components.iceberg_updater.committer import Committed, Committer, TableWork, is_iceberg
from components.iceberg_updater.refresh import Refresh
from components.iceberg_updater.settings import UpdaterSettings
from components.lake.iceberg import CatalogTrouble, IcebergTables, Retention, explained, open_catalog
from components.lake.identity import registry_identity
from registry.contract import ConsistentRead
from registry.errors import RegistryError
from registry.models import LakeTable, Row, TableFile, TableMetadata
from registry.privileges import Area

log = structlog.get_logger(__name__)

T = TypeVar("T")

OWNER = "iceberg_updater"

_VISIBLE_WITHIN_S = 10.0


class IcebergUpdater:
    written_areas = frozenset((Area.LAKE,))

    def __init__(self, settings: UpdaterSettings, surroundings: Surroundings) -> None:
        self._settings = settings
        self._surroundings = surroundings
        self._store = surroundings.store
        self._thread: ThreadPoolExecutor | None = None
        self._committer: Committer | None = None
        self._tables: dict[int, LakeTable] = {}
        self._metadata: dict[int, dict[int, TableMetadata]] = {}
        self._ignored: set[int] = set()
        self._unreferenced: list[str] = []
        self._commits = self._snapshots = 0

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return frozenset((TableMetadata.table, TableFile.table))

    async def start(self) -> None:
        identity = await registry_identity(self._store)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="iceberg")
        self._committer = await self._call(lambda: self._opened(identity))

    async def stop(self) -> None:
        committer, self._committer = self._committer, None
        if committer is not None:
            await self._call(committer.tables.close)
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)

    async def on_event(self, event: Event[Row]) -> None:
        await self.on_transactions([[event]])

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        await self.on_transactions([events])

    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        found = by_table(transactions)
        if any(events.speaks_of_schema for events in found.values()):
            await self._until_visible(transactions[-1][-1].commit)
        for events in found.values():
            work = await self._work(events)
            if work is None:
                continue
            done = await self._commit(work, events)
            if done is not None:
                self._commits += 1
                self._snapshots += done.snapshots
                self._unreferenced += done.unreferenced
                log.debug("committed", table=work.name, snapshots=done.snapshots, files=done.files)
        await self._hand_over()

    async def on_health(self) -> bool:
        committer = self._opened_committer()
        await self._call(lambda: committer.tables.catalog.list_namespaces())
        return True

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        self._tables.clear()
        self._metadata.clear()
        refresh = Refresh(self._opened_committer(), self._call)
        self._unreferenced += await refresh.run(snapshot)
        await self._hand_over()

    def measures(self) -> Iterator[Measure]:
        yield Measure("commits", "Commits to Iceberg tables, refreshes apart.", self._commits, kind="counter")
        yield Measure("snapshots", "Snapshots in those commits.", self._snapshots, kind="counter")
        committer = self._committer
        for name in list(committer.stopped) if committer is not None else ():
            yield Measure("table_stopped", "1 for a table that needs a person.", 1, {"table": name})

    async def _until_visible(self, commit: Commit) -> None:
        """On PostgreSQL the stream brings a commit a moment before others can read it; what is asked of the registry
        about a table must not be older than the event that made us ask.
        """
        deadline = self._surroundings.clock.monotonic() + _VISIBLE_WITHIN_S
        while True:
            async with self._store.consistent_read() as snapshot:
                if snapshot.place.contains(commit.transaction, commit.position):
                    return
            if self._surroundings.clock.monotonic() > deadline:
                raise Retry(f"transaction {commit.transaction} was committed but is still not visible")
            await asyncio.sleep(0.002)

    async def _commit(self, work: TableWork, events: TableEvents) -> Committed | None:
        committer = self._opened_committer()
        try:
            return await self._call(lambda: committer.commit(work, events))
        except (Reject, Retry, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("unexpected trouble with a table", table=work.name)
            raise Reject(f"{work.name}: {error!r}: comparing it with the registry") from error

    async def _work(self, events: TableEvents) -> TableWork | None:
        """The table as the registry has it now. None if it is not, or no longer, for Iceberg."""
        table_id = events.table_id
        if events.speaks_of_schema:
            self._tables.pop(table_id, None)
        table = self._tables.get(table_id) or await self._store.get_table_by_id(table_id)
        if table is None:
            await self._drop(events)
            return None
        self._tables[table_id] = table
        known = self._metadata.setdefault(table_id, {})
        known.update((row.schema_version, row) for row in events.rows)
        for version in events.versions - known.keys():
            row = await self._store.get_table_metadata(table_id, version)
            if row is None:  # dropped this very moment: its events follow
                return None
            known[version] = row
        if not is_iceberg(known.values()):
            self._say_ignored(table, known)
            return None
        return TableWork(table, dict(known))

    async def _drop(self, events: TableEvents) -> None:
        self._tables.pop(events.table_id, None)
        self._metadata.pop(events.table_id, None)
        self._ignored.discard(events.table_id)
        if not events.drops:
            return
        committer = self._opened_committer()
        committer.forget(events.table_id)
        purged = await self._store.list_files_awaiting_deletion(table_id=events.table_id, limit=1)
        files = await self._call(lambda: committer.tables.metadata_files(events.table_id)) if purged else []
        if await self._call(lambda: committer.tables.drop(events.table_id)):
            self._unreferenced += files  # not before it is gone: the cleaner asks nobody
            log.info("Iceberg table dropped", table_id=events.table_id)

    def _say_ignored(self, table: LakeTable, known: dict[int, TableMetadata]) -> None:
        if table.id not in self._ignored:
            self._ignored.add(table.id)
            kind = known[max(known)].format
            log.info("table is not for Iceberg", table=f"{table.database}.{table.name}", format=kind)

    async def _hand_over(self) -> None:
        """Metadata files that no snapshot needs go to the cleaner, which removes them when readers are done."""
        paths, self._unreferenced = self._unreferenced, []
        if not paths:
            return
        try:
            await self._store.record_intents(paths, purpose="metadata", owner=OWNER)
        except RegistryError as error:
            self._unreferenced += paths
            log.warning("can't hand over old metadata files yet", files=len(paths), error=str(error))

    def _opened(self, identity: str) -> Committer:
        catalog = open_catalog(self._surroundings.registry_url.get_secret_value(), self._surroundings.lake)
        return Committer(IcebergTables(catalog, identity), Retention(self._settings.max_snapshots))

    def _opened_committer(self) -> Committer:
        if self._committer is None:
            raise Retry("the catalog is not open")
        return self._committer

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, explained, work)
        except CatalogTrouble as error:
            raise Retry(str(error)) from error
