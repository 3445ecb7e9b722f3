"""The subscriber: validates tables as they change, completes drops, and runs maintenance in the background."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

from astha import subscribers
from astha.subscribers import (
    Area,
    BackgroundTasks,
    Component,
    ConsistentRead,
    Event,
    LakeTable,
    LoopClock,
    MetadataStore,
    Metric,
    Operation,
    TableMetadata,
    handles,
)
from components.metadata_orchestrator.known_problems import KnownProblem, KnownProblems
from components.metadata_orchestrator.maintenance import Maintenance, MaintenanceStatistics
from components.metadata_orchestrator.validation import TableValidator, invalid_versions, probe_of

_LOCATION = "location"


class MetadataOrchestrator(Component):
    """Keeps problems of tables in `known_problems`: they neither fail a delivery nor make the component unhealthy."""

    durable = False  # the problems found are kept in memory only
    written_areas = frozenset((Area.LAKE,))

    def __init__(
        self, store: MetadataStore, clock: LoopClock, validator: TableValidator, maintenance: Maintenance
    ) -> None:
        self._store = store
        self._clock = clock
        self._validator = validator
        self._maintenance = maintenance
        self._problems = KnownProblems()
        self._background = BackgroundTasks("metadata_orchestrator", clock)

    @property
    def known_problems(self) -> list[KnownProblem]:
        return self._problems.listed()

    def problems(self) -> Iterable[subscribers.Problem]:
        """Returns the tables' problems, each checked again in every round of maintenance, and refused deletions."""
        for found in self._problems.listed():
            yield subscribers.Problem(found.table, f"{found.subject}: {found.text}", found.since)
        for path, reason, since in self._maintenance.refusals():
            yield subscribers.Problem(path, f"named by an upload intent, but never deleted: {reason}", since)

    @property
    def problems_reported(self) -> int:
        """Counts all problems since construction, also solved ones."""
        return self._problems.reported

    @property
    def statistics(self) -> MaintenanceStatistics:
        return self._maintenance.statistics

    async def check(self) -> list[subscribers.CheckResult]:
        return [await self._validator.check_warehouse()]

    def metrics(self) -> Iterable[Metric]:
        yield Metric("problems", "Tables with a problem that an operator has to solve.", len(self._problems.tables()))
        yield Metric("problems_reported", "Problems reported since start.", self._problems.reported, kind="counter")
        done = self._maintenance.statistics
        yield Metric("maintenance_rounds", "Rounds of maintenance.", done.rounds, kind="counter")
        yield Metric("maintenance_failures", "Failed maintenance steps.", done.failures, kind="counter")
        yield Metric("objects_deleted", "Deleted objects of abandoned uploads.", done.objects_deleted, kind="counter")
        text = "Upload intents of files outside of the lake, which are never deleted. The log names them."
        yield Metric("deletions_refused", text, len(done.refused))
        yield Metric("tables_dropped", "Tables whose drop was completed here.", done.tables_dropped, kind="counter")

    async def start(self) -> None:
        """Starts maintenance at once, in the background: storage may be slow."""
        self._background.supervise("maintenance", partial(self._maintenance.run, self.validate_again))

    async def stop(self) -> None:
        await self._background.stop()

    async def on_health(self) -> bool:
        for task, reason in self._background.failing().items():
            raise RuntimeError(f"{task} failed and waits for its restart: {reason}")
        return True

    @handles(LakeTable)
    async def table(self, event: Event[LakeTable]) -> None:
        """Most updates only change statistics: those cost one comparison."""
        table = event.data
        if event.operation is Operation.DELETE:
            self._problems.forget(table.id)
        elif table.status == "dropping":
            await self._maintenance.finish_drop(table.id)
        elif event.before is None or event.before.location != table.location:
            self._note_location(table, await self._validator.check_location(table.location))

    @handles(TableMetadata)
    async def version(self, event: Event[TableMetadata]) -> None:
        if event.operation is Operation.DELETE:
            return
        if event.before is not None and _definition(event.before) == _definition(event.data):
            return  # only properties or timestamps changed
        table = await self._store.get_table_by_id(event.data.table_id)
        if table is not None:
            self._note_versions(table, await self._store.list_table_metadata(table.id))

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Validates all tables, then completes drops."""
        tables = [table async for page in snapshot.rows(LakeTable) for table in page]
        versions: dict[int, list[TableMetadata]] = defaultdict(list)
        async for page in snapshot.rows(TableMetadata):
            for metadata in page:
                versions[metadata.table_id].append(metadata)
        for gone in self._problems.tables() - {table.id for table in tables}:
            self._problems.forget(gone)
        await self._validate([table for table in tables if table.status != "dropping"], versions)
        for table in tables:
            if table.status == "dropping":
                await self._maintenance.finish_drop(table.id)

    async def validate_again(self) -> None:
        """Validates tables with problems: a repair of storage solves one without a change in the registry."""
        for table_id in sorted(self._problems.tables()):
            table = await self._store.get_table_by_id(table_id)
            if table is None:
                self._problems.forget(table_id)
            else:
                await self._validate([table], {table_id: await self._store.list_table_metadata(table_id)})

    async def _validate(self, tables: Sequence[LakeTable], versions: dict[int, list[TableMetadata]]) -> None:
        checked: dict[str, str | None] = {}
        for table in tables:
            probe = probe_of(table.location)
            if probe not in checked:
                checked[probe] = await self._validator.check_location(table.location)
            self._note_location(table, checked[probe])
            self._note_versions(table, versions.get(table.id, []))
            await asyncio.sleep(0)  # yields the event loop: a lake has many tables

    def _note_location(self, table: LakeTable, problem: str | None) -> None:
        if problem is None:
            self._problems.solved(table.id, [_LOCATION])
        else:
            self._problems.found(table, _LOCATION, problem, self._clock.now_ms())

    def _note_versions(self, table: LakeTable, versions: Sequence[TableMetadata]) -> None:
        invalid = {f"schema version {version}": text for version, text in invalid_versions(versions).items()}
        self._problems.solved(table.id, self._problems.subjects(table.id) - invalid.keys() - {_LOCATION})
        for subject, text in invalid.items():
            self._problems.found(table, subject, text, self._clock.now_ms())


def _definition(metadata: TableMetadata) -> tuple[object, ...]:
    return (metadata.schema_version, metadata.schema, metadata.partition_by, metadata.sort_by)
