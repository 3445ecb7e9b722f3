"""Compares tables repeatedly until their differences are settled: gone, or certain (`diff` explains the rule)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
from pyiceberg.table import Table

from astha.clock import LoopClock
from components.commands.verify.diff import FileComparison, TableDiff
from components.commands.verify.iceberg_state import IcebergState, read_state, table_findings
from components.commands.verify.registry_state import compare_files
from components.commands.verify.report import DifferenceKind
from components.commands.verify.updater_lag import UpdaterProgress, read_updater
from components.lib.lake.iceberg import IcebergTables, TableProblem, TableUnavailable
from components.lib.lake.iceberg.catalog_thread import call_with_timeout
from components.lib.lake.iceberg.tables import Identifier
from components.lib.lake.updater_state import FailingTable, read_failing_tables
from registry.contract import MetadataStore
from registry.models import LakeTable

T = TypeVar("T")

PAUSE_S = 0.2
_SHORTEST_S = 5.0


class IcebergReader:
    """Reads the catalog with a time limit per table. Raises `TableUnavailable` when it is exceeded."""

    def __init__(self, tables: IcebergTables, timeout_s: float) -> None:
        self._tables = tables
        self._timeout_s = timeout_s

    async def read(self, table: LakeTable, *, keep_files: bool = False) -> IcebergState | None:
        return await self._call(partial(read_state, self._tables, table, keep_files=keep_files))

    async def load(self, table: LakeTable, *, cached: bool) -> Table | None:
        return await self._call(partial(self._tables.load, table, cached=cached))

    async def names(self) -> dict[int, Identifier]:
        """Reads the names of all tables again."""
        self._tables.forget()
        return await self._call(self._tables.names, limits=10)

    async def _call(self, work: Callable[[], T], limits: int = 1) -> T:
        timeout_s = max(self._timeout_s, _SHORTEST_S) * limits
        try:
            return await call_with_timeout(work, timeout_s)
        except TimeoutError as error:
            raise TableUnavailable(f"no answer within {timeout_s:g} s") from error


class ComparedTable(msgspec.Struct):
    """A table in one comparison. `found` is None if the catalog has no such table, or another one of its name;
    `no_answer` if its storage did not answer.
    """

    found: IcebergState | None
    diff: TableDiff
    no_answer: bool = False

    @property
    def needs_operator(self) -> bool:
        return self.no_answer or (self.found is not None and self.found.needs_operator)


class SettledDiffs(msgspec.Struct):
    """`last` has the last comparison of each table that still exists, `certain` the differences that persisted.
    `passed`: whether the updater passed the first comparison.
    """

    last: dict[int, ComparedTable]
    certain: dict[int, TableDiff]
    updater: UpdaterProgress
    troubled: dict[int, FailingTable]
    passed: bool
    waited_s: float


class DiffSettler:
    """Waits for the updater until `deadline`, by the monotonic clock."""

    def __init__(self, store: MetadataStore, reader: IcebergReader, clock: LoopClock, deadline: float) -> None:
        self._store = store
        self._reader = reader
        self._clock = clock
        self._deadline = deadline

    async def settle(self, table_ids: list[int]) -> SettledDiffs:
        began = self._clock.monotonic()
        last = await self._compare(table_ids)
        until = await self._store.position()
        candidates = {table_id: compared.diff for table_id, compared in last.items() if compared.diff}
        while True:
            updater = await read_updater(self._store, self._clock)
            troubled = await read_failing_tables(self._store)  # after the ledger, because it is written before
            passed = updater.has_passed(until)
            failing = {table_id for table_id, trouble in troubled.items() if trouble.attempts}
            pending = any(not last[table_id].needs_operator for table_id in candidates.keys() - failing)
            refreshed_soon = any(table_id in troubled for table_id in candidates.keys() - failing)
            is_final = (
                not pending or (passed and not refreshed_soon) or not updater.is_worth_waiting_for or self._is_late
            )
            again = await self._compare(list(candidates))
            for table_id, before in list(candidates.items()):
                later = again.get(table_id)
                if later is None:
                    del last[table_id], candidates[table_id]
                    continue
                last[table_id] = later
                candidates[table_id] = before.persisting(later.diff)
                if not candidates[table_id]:
                    del candidates[table_id]
            waited_s = self._clock.monotonic() - began
            if is_final or not candidates:
                return SettledDiffs(last, candidates, updater, troubled, passed, waited_s)
            await self._clock.sleep(max(PAUSE_S, waited_s / 10))

    async def settle_leftovers(self) -> tuple[dict[int, str], UpdaterProgress | None]:
        """Returns Iceberg tables of this registry that it no longer has, and the updater's state if there are any.

        Raises `TableProblem` or `TableUnavailable` if the catalog's tables cannot be read.
        """
        candidates = await self._unregistered()
        until = await self._store.position()
        while candidates:
            updater = await read_updater(self._store, self._clock)
            is_final = updater.has_passed(until) or not updater.is_worth_waiting_for or self._is_late
            again = await self._unregistered()
            candidates = {table_id: name for table_id, name in candidates.items() if table_id in again}
            if is_final and candidates:
                return candidates, updater
            await self._clock.sleep(PAUSE_S if candidates else 0)
        return {}, None

    @property
    def _is_late(self) -> bool:
        return self._clock.monotonic() >= self._deadline

    async def _compare(self, table_ids: list[int]) -> dict[int, ComparedTable]:
        """Reads Iceberg first, then the registry. The result is without tables that no longer exist."""
        found: dict[int, IcebergState | TableProblem | TableUnavailable | None] = {}
        comparisons: dict[int, FileComparison] = {}
        for table_id in table_ids:
            table = await self._store.get_table_by_id(table_id)
            if table is not None:
                found[table_id] = state = await self._read(table)
                comparisons[table_id] = FileComparison(state.files if isinstance(state, IcebergState) else [])
                if isinstance(state, IcebergState):
                    state.files = []
        if not comparisons:
            return {}
        compared: dict[int, ComparedTable] = {}
        for table_id, known in (await compare_files(self._store, comparisons)).items():
            state = found[table_id]
            table, metadata = known.table, known.metadata
            if isinstance(state, TableProblem):
                diff = TableDiff(findings={(DifferenceKind.UNREADABLE, str(state))})
                compared[table_id] = ComparedTable(None, diff)
            elif isinstance(state, TableUnavailable):
                diff = TableDiff(findings={(DifferenceKind.NO_ANSWER, str(state))})
                compared[table_id] = ComparedTable(None, diff, no_answer=True)
            elif state is None or state.digest is None:  # all of its files would be missing: one reason is enough
                diff = TableDiff(findings=set(table_findings(state, table, metadata, known.deletes)))
                compared[table_id] = ComparedTable(state, diff)
            else:
                diff = comparisons[table_id].result(table_findings(state, table, metadata, known.deletes))
                compared[table_id] = ComparedTable(state, diff)
        return compared

    async def _read(self, table: LakeTable) -> IcebergState | TableProblem | TableUnavailable | None:
        try:
            return await self._reader.read(table, keep_files=True)
        except (TableProblem, TableUnavailable) as problem:
            return problem

    async def _unregistered(self) -> dict[int, str]:
        names = await self._reader.names()
        known = {table.id for table in await self._store.list_tables()}
        return {table_id: ".".join(name) for table_id, name in names.items() if table_id not in known}
