from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from astha import subscribers
from astha.clock import LoopClock
from astha.events import Event, Operation
from astha.subscribers import Component, Metric, handles
from components.metadata_orchestrator.known_problems import Problem, Problems
from components.metadata_orchestrator.maintenance import Upkeep, UpkeepStatistics
from components.metadata_orchestrator.validation import Inspection, bad_versions, probe_of
from registry.contract import ConsistentRead, MetadataStore
from registry.models import LakeTable, TableMetadata
from registry.privileges import Area

_LOCATION = "location"


class MetadataOrchestrator(Component):
    """What is wrong with a table is kept in `known_problems`; it makes neither the component unhealthy nor a delivery
    fail.
    """

    written_areas = frozenset((Area.LAKE,))

    def __init__(self, store: MetadataStore, clock: LoopClock, inspection: Inspection, upkeep: Upkeep) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._inspection = inspection
        self._upkeep = upkeep
        self._problems = Problems()
        self._task: asyncio.Task[None] | None = None

    @property
    def known_problems(self) -> list[Problem]:
        return self._problems.listed()

    def problems(self) -> Iterable[subscribers.Problem]:
        """Tried again with each round of upkeep."""
        for found in self._problems.listed():
            yield subscribers.Problem(found.table, f"{found.subject}: {found.text}", found.since)
        for path, reason, since in self._upkeep.refusals():
            yield subscribers.Problem(path, f"an upload intent names it, and it is never deleted: {reason}", since)

    @property
    def problems_reported(self) -> int:
        """All that there ever were, the solved ones included."""
        return self._problems.reported

    @property
    def statistics(self) -> UpkeepStatistics:
        return self._upkeep.statistics

    async def check(self) -> list[subscribers.CheckResult]:
        return [await self._inspection.check_warehouse()]

    def metrics(self) -> Iterable[Metric]:
        yield Metric("problems", "Tables with something that a person has to mend.", len(self._problems.tables()))
        yield Metric("problems_reported", "Problems that there ever were.", self._problems.reported, kind="counter")
        done = self._upkeep.statistics
        yield Metric("upkeep_rounds", "Rounds of upkeep.", done.rounds, kind="counter")
        yield Metric("upkeep_failures", "Steps of upkeep that failed.", done.failures, kind="counter")
        yield Metric("objects_deleted", "Uploads that nobody registered.", done.objects_deleted, kind="counter")
        told = "Upload intents for files outside of the lake, which are never deleted: the log names them."
        yield Metric("deletions_refused", told, len(done.refused))
        yield Metric("tables_dropped", "Tables whose drop was finished here.", done.tables_dropped, kind="counter")

    async def start(self) -> None:
        """What a dead process has left is looked for at once, in the background: storage may take its time."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._upkeep.run(self.inspect_again), name="orchestrator-upkeep")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @handles(LakeTable)
    async def table(self, event: Event[LakeTable]) -> None:
        """Most updates only move statistics: those cost a comparison."""
        table = event.data
        if event.operation is Operation.DELETE:
            self._problems.forget(table.id)
        elif table.status == "dropping":
            await self._upkeep.finish_drop(table.id)
        elif event.before is None or event.before.location != table.location:
            self._note_location(table, await self._inspection.try_location(table.location))

    @handles(TableMetadata)
    async def version(self, event: Event[TableMetadata]) -> None:
        if event.operation is Operation.DELETE:
            return
        if event.before is not None and _documents(event.before) == _documents(event.data):
            return  # properties, or a touch
        table = await self._store.get_table_by_id(event.data.table_id)
        if table is not None:
            self._note_versions(table, await self._store.list_table_metadata(table.id))

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """The same for all tables. Drops are finished once the snapshot has been read."""
        tables = [table async for page in snapshot.rows(LakeTable) for table in page]
        versions: dict[int, list[TableMetadata]] = defaultdict(list)
        async for page in snapshot.rows(TableMetadata):
            for metadata in page:
                versions[metadata.table_id].append(metadata)
        for gone in self._problems.tables() - {table.id for table in tables}:
            self._problems.forget(gone)
        await self._inspect([table for table in tables if table.status != "dropping"], versions)
        for table in tables:
            if table.status == "dropping":
                await self._upkeep.finish_drop(table.id)

    async def inspect_again(self) -> None:
        """Tables with problems: some are solved without a change to the registry, by whoever repairs the storage."""
        for table_id in sorted(self._problems.tables()):
            table = await self._store.get_table_by_id(table_id)
            if table is None:
                self._problems.forget(table_id)
            else:
                await self._inspect([table], {table_id: await self._store.list_table_metadata(table_id)})

    async def _inspect(self, tables: Sequence[LakeTable], versions: dict[int, list[TableMetadata]]) -> None:
        tried: dict[str, str | None] = {}
        for table in tables:
            probe = probe_of(table.location)
            if probe not in tried:
                tried[probe] = await self._inspection.try_location(table.location)
            self._note_location(table, tried[probe])
            self._note_versions(table, versions.get(table.id, []))
            await asyncio.sleep(0)  # a lake has many tables, and the loop is everybody's

    def _note_location(self, table: LakeTable, problem: str | None) -> None:
        if problem is None:
            self._problems.solved(table.id, [_LOCATION])
        else:
            self._problems.found(table, _LOCATION, problem, self._clock.now_ms())

    def _note_versions(self, table: LakeTable, versions: Sequence[TableMetadata]) -> None:
        bad = {f"schema version {version}": text for version, text in bad_versions(versions).items()}
        self._problems.solved(table.id, self._problems.subjects(table.id) - bad.keys() - {_LOCATION})
        for subject, text in bad.items():
            self._problems.found(table, subject, text, self._clock.now_ms())


def _documents(metadata: TableMetadata) -> tuple[object, ...]:
    return (metadata.schema_version, metadata.schema, metadata.partition_by, metadata.sort_by)
