"""Commits one table's events, or drops its Iceberg table, on the updater's thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog

from astha.tracing import NOT_TRACED, Tracer
from components.iceberg_updater.committer_thread import CommitterThread
from components.iceberg_updater.event_folding import TableEvents
from components.iceberg_updater.target_tables import TableGone, TargetTables
from components.lib.lake.iceberg import ForeignTable, TableUnavailable
from components.lib.lake.iceberg.metadata_places import other_places
from components.lib.lake.updater_state import FailingTable
from registry.contract import MetadataStore
from registry.errors import RegistryError

log = structlog.get_logger(__name__)

OWNER = "iceberg_updater"


class UnreferencedMetadata:
    """Metadata files that no snapshot refers to, until they are recorded as upload intents: the cleaner deletes them
    after the readers' grace period.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._paths: list[str] = []

    def add(self, paths: list[str]) -> None:
        self._paths += paths

    async def hand_over(self) -> None:
        """A registry that does not answer is no error: the paths are kept for the next call."""
        paths, self._paths = self._paths, []
        if not paths:
            return
        try:
            await self._store.record_intents(paths, purpose="metadata", owner=OWNER)
        except RegistryError as error:
            self._paths += paths
            log.warning("old metadata files not handed over yet", files=len(paths), error=str(error))


class EventCommitter:
    """`thread` returns the thread to commit on. `commits` and `snapshots` count since construction."""

    def __init__(
        self,
        store: MetadataStore,
        targets: TargetTables,
        unreferenced: UnreferencedMetadata,
        thread: Callable[[], CommitterThread],
        tracer: Tracer = NOT_TRACED,
    ) -> None:
        self._store = store
        self._targets = targets
        self._unreferenced = unreferenced
        self._thread = thread
        self._tracer = tracer
        self.commits = 0
        self.snapshots = 0

    async def commit(self, events: TableEvents) -> None:
        """Raises what `Committer.commit` raises. Drops the Iceberg table if the events say that the table is gone."""
        try:
            target = await self._targets.resolve(events)
        except TableGone:
            if events.drops:
                await self._drop(events.table_id)
            return
        if target is None:
            return
        thread = self._thread()
        try:
            with self._tracer.span("commit to Iceberg", "client", table=target.name) as span:
                done = await thread.call(partial(thread.committer.commit, target, events), table=target.table)
                if done is not None:
                    span.set(snapshots=done.snapshots, files=done.files)
        except ForeignTable:
            if target.fresh:
                raise
            self._targets.forget(events.table_id)  # an engine may have dropped it, and given its name to another table
            await self.commit(events)
            return
        if done is not None:
            self.commits += 1
            self.snapshots += done.snapshots
            self._unreferenced.add(done.unreferenced)
            log.debug("committed", table=target.name, snapshots=done.snapshots, files=done.files)

    def is_new(self, table_id: int) -> bool:
        """Whether the table was created through the catalog, or this process has not seen it for another reason."""
        return not self._thread().committer.tables.knows(table_id)

    async def follow_engine(self, table_id: int) -> None:
        """An engine has committed to the table: what is cached of it is out of date."""
        self.forget(table_id)
        tables = self._thread().committer.tables
        if not tables.knows(table_id):
            table = await self._store.get_table_by_id(table_id)
            if table is not None:
                tables.remember(table)

    async def drop_pending(self, pending: FailingTable) -> None:
        """Drops the Iceberg table of a pending refresh whose table the registry no longer has.

        Raises `TableUnavailable` if the catalog has an unreadable table of that name, which may be this one.
        """
        self._thread().committer.tables.forget()
        await self._drop(pending.table_id)
        if self.is_unreadable(pending):
            raise TableUnavailable(f"{pending.table} was dropped, but the catalog has an unreadable table of that name")

    def is_unreadable(self, pending: FailingTable) -> bool:
        """Whether the last scan of the catalog found an unreadable table of that name."""
        return self._thread().committer.tables.is_unreadable(tuple(pending.table.split(".")))

    def forget(self, table_id: int) -> None:
        """The table was committed to elsewhere: what is cached of it here is out of date."""
        self._thread().committer.tables.forget_one(table_id)
        self._targets.forget(table_id)

    async def after_refresh(self, table_id: int, unreferenced: list[str]) -> None:
        """The table was refreshed on another thread."""
        self.forget(table_id)
        self._unreferenced.add(unreferenced)
        await self._unreferenced.hand_over()

    async def _drop(self, table_id: int) -> None:
        thread = self._thread()
        tables = thread.committer.tables
        thread.committer.forget(table_id)
        purged = await self._store.list_files_awaiting_deletion(table_id=table_id, limit=1)
        others = await other_places(self._store, table_id, None) if purged else []
        files = await thread.call(lambda: tables.metadata_files(table_id, others)) if purged else []
        if await thread.call(lambda: tables.drop(table_id)):
            self._unreferenced.add(files)  # only after the drop: the cleaner does not ask the catalog
            log.info("Iceberg table dropped", table_id=table_id)
