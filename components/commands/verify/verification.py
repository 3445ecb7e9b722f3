"""`Verification`: the registry against itself, against Iceberg and against storage.

Digests first; files only of tables whose digests differ, a batch of tables at a time, so that memory is bounded. What
differs is looked at again until the updater has come past it (`components.commands.verify.diff` says why that decides).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec

from astha.clock import LoopClock
from components.commands.verify import diagnosis
from components.commands.verify.deadline import within
from components.commands.verify.diff import Comparison, Observation, sort
from components.commands.verify.iceberg_state import Committed, look, remarks
from components.commands.verify.registry_state import RegisteredTable, batches, compare_files, read_tables
from components.commands.verify.report import Cause, Difference, Kind, Report, TableReport
from components.commands.verify.storage_check import Progress, Reading, StorageCheck
from components.commands.verify.tags import Remark, compare_tags
from components.commands.verify.updater_lag import UpdaterState, read_updater
from components.lib.lake.iceberg import IcebergTables, TableProblem, TableUnavailable
from components.lib.lake.storage.objects import StorageError
from components.lib.lake.table_lookup import full_name
from components.lib.lake.updater_state import FailingTable, read_failing_tables
from registry.contract import MetadataStore
from registry.errors import NotFound
from registry.models import LakeTable, TableSnapshot

T = TypeVar("T")

_FILES_AT_ONCE = 500_000
_SHORTEST_S = 5.0
_PAUSE_S = 0.2
_TAG_LOOKS = 3


class Options(msgspec.Struct, frozen=True):
    """`timeout_s` is how long to wait for the updater in all, and for one table's metadata to be read; `lease` the name
    that daemons share.
    """

    files: bool = False
    checksums: bool = False
    repair_statistics: bool = False
    parallel: int = 8
    timeout_s: float = 120.0
    lease: str = "astha"


class _Look(msgspec.Struct):
    """A table at one moment. `found` is None if the catalog has no such table, or another's under its name; `silent`
    if its storage did not answer.
    """

    found: Committed | None
    observation: Observation
    silent: bool = False

    @property
    def left_alone(self) -> bool:
        return self.silent or (self.found is not None and self.found.left_alone)


class _Verdict(msgspec.Struct):
    looks: dict[int, _Look]
    certain: dict[int, Observation]
    updater: UpdaterState
    troubled: dict[int, FailingTable]
    passed: bool
    waited_s: float


class Verification:
    """`tables` must know the registry's identity for tables that the registry has no more to be looked for."""

    def __init__(
        self,
        store: MetadataStore,
        tables: IcebergTables,
        objects: Reading,
        clock: LoopClock,
        options: Options | None = None,
        progress: Progress = lambda _table, _done, _total: None,
    ) -> None:
        self._store = store
        self._tables = tables
        self._objects = objects
        self._clock = clock
        self._options = options or Options()
        self._progress = progress
        self._deadline = 0.0
        self._reports: dict[int, TableReport] = {}

    async def run(self, wanted: Collection[int] | None = None) -> Report:
        """Of all tables, or of these. CatalogUnavailable or Unavailable if the catalog or the registry does not answer;
        a table whose storage does not is a difference, and the others are compared all the same.
        """
        self._deadline = self._clock.monotonic() + self._options.timeout_s
        registered = await self._registered(wanted)
        suspects = [table for table in registered.values() if table.is_iceberg and not await self._is_equal(table)]
        for batch in batches(suspects, _FILES_AT_ONCE):
            await self._settle(batch)
        for table in registered.values():
            if table.is_iceberg and table.table.id in self._reports:
                await self._check_tags(table.table)
        elsewhere = [] if wanted is not None else await self._leftovers()
        if self._options.files or self._options.checksums:
            for table in registered.values():
                await self._check_storage(table)
        return Report(sorted(self._reports.values(), key=lambda report: report.table), elsewhere)

    async def _registered(self, wanted: Collection[int] | None) -> dict[int, RegisteredTable]:
        found = await read_tables(self._store, wanted)
        repaired = []
        if self._options.repair_statistics:
            repaired = [table.table.id for table in found.values() if any(table.wrong_statistics())]
            for table_id in repaired:
                with suppress(NotFound):  # dropped meanwhile
                    await self._store.recount_statistics(table_id)
            if repaired:
                found = await read_tables(self._store, wanted)
        for table_id, table in found.items():
            report = self._reports[table_id] = TableReport(
                table.name, table.metadata.format, table.total.files, table.total.rows, table.total.size_bytes
            )
            report.statistics_repaired = table_id in repaired
            wrong = list(table.wrong_statistics())
            if wrong:
                report.differences.append(Difference(Kind.STATISTICS, wrong, diagnosis.of_statistics(table.name)))
        return found

    async def _is_equal(self, table: RegisteredTable) -> bool:
        try:
            found = await self._within(partial(look, self._tables, table.table))
        except (TableProblem, TableUnavailable):
            return False
        if found is None or found.foreign or found.digest != table.digest:
            return False
        self._describe(table.table.id, found)
        return not any(remarks(found, table.table, table.metadata))

    async def _check_tags(self, table: LakeTable) -> None:
        """The first look costs no reading of metadata: it has just been done."""
        found = await self._tag_remarks(table, cached=True)
        for _ in range(_TAG_LOOKS):
            if not found:
                return
            await self._clock.sleep(_PAUSE_S)
            found &= await self._tag_remarks(table, cached=False)
        if found and await self._store.get_table_by_id(table.id) is None:
            return  # dropped meanwhile, with its rows; its Iceberg table follows
        for kind, cause in (
            (Kind.SNAPSHOT_LOST, diagnosis.of_lost_snapshot(full_name(table))),
            (Kind.TAG_UNKNOWN, diagnosis.of_unknown_tag()),
        ):
            items = sorted(text for of, text in found if of is kind)
            if items:
                self._reports[table.id].differences.append(Difference(kind, items, cause))

    async def _tag_remarks(self, table: LakeTable, *, cached: bool) -> set[Remark]:
        """Iceberg first, the registry after it. Nothing of a table that can't be read: that differs by itself."""
        try:
            loaded = await self._within(partial(self._tables.load, table, cached=cached))
        except (TableProblem, TableUnavailable):
            return set()
        rows: list[TableSnapshot] = []
        while page := await self._store.list_snapshots(table.id, after=rows[-1].id if rows else 0):
            rows += page
        return set(compare_tags(None if loaded is None else loaded.metadata, rows))

    def _describe(self, table_id: int, found: Committed | None) -> None:
        report = self._reports[table_id]
        if found is not None:
            report.digest = None if found.digest is None else str(found.digest)
            report.snapshot = found.loaded.metadata.current_snapshot_id
            report.position = found.stamp.position

    async def _settle(self, batch: list[RegisteredTable]) -> None:
        verdict = await self._decide([table.table.id for table in batch])
        for table in batch:
            last = verdict.looks.get(table.table.id)
            if last is None:  # dropped meanwhile
                del self._reports[table.table.id]
                continue
            self._describe(table.table.id, last.found)
            certain = verdict.certain.get(table.table.id, Observation())
            trouble = verdict.troubled.get(table.table.id)
            self._reports[table.table.id].differences += _differences(table.name, last.found, certain, verdict, trouble)

    async def _decide(self, table_ids: list[int]) -> _Verdict:
        began = self._clock.monotonic()
        looks = await self._look(table_ids)
        until = await self._store.position()
        candidates = {table_id: seen.observation for table_id, seen in looks.items() if seen.observation}
        while True:
            updater = await read_updater(self._store, self._options.lease, self._clock)
            troubled = await read_failing_tables(self._store)  # after the ledger: it is written before
            passed = updater.has_passed(until)
            failing = {table_id for table_id, trouble in troubled.items() if trouble.attempts}
            pending = any(not looks[table_id].left_alone for table_id in candidates.keys() - failing)
            compared_soon = any(table_id in troubled for table_id in candidates.keys() - failing)
            come = passed and not compared_soon
            last = not pending or come or not updater.is_worth_waiting_for or self._is_late
            again = await self._look(list(candidates))
            for table_id, before in list(candidates.items()):
                later = again.get(table_id)
                if later is None:
                    del looks[table_id], candidates[table_id]
                    continue
                looks[table_id] = later
                candidates[table_id] = before.persisting(later.observation)
                if not candidates[table_id]:
                    del candidates[table_id]
            waited_s = self._clock.monotonic() - began
            if last or not candidates:
                return _Verdict(looks, candidates, updater, troubled, passed, waited_s)
            await self._clock.sleep(max(_PAUSE_S, waited_s / 10))

    @property
    def _is_late(self) -> bool:
        return self._clock.monotonic() >= self._deadline

    async def _within(self, work: Callable[[], T], times: int = 1) -> T:
        """TableUnavailable if it does not come back in time."""
        limit_s = max(self._options.timeout_s, _SHORTEST_S) * times
        try:
            return await within(limit_s, work)
        except TimeoutError as error:
            raise TableUnavailable(f"no answer within {limit_s:g} s") from error

    async def _look(self, table_ids: list[int]) -> dict[int, _Look]:
        """Iceberg first, the registry after it. Tables that are gone are not in the answer."""
        found: dict[int, Committed | TableProblem | TableUnavailable | None] = {}
        comparisons: dict[int, Comparison] = {}
        for table_id in table_ids:
            table = await self._store.get_table_by_id(table_id)
            if table is not None:
                found[table_id] = seen = await self._load(table)
                comparisons[table_id] = Comparison(seen.files if isinstance(seen, Committed) else [])
                if isinstance(seen, Committed):
                    seen.files = []
        if not comparisons:
            return {}
        looks: dict[int, _Look] = {}
        for table_id, (table, metadata) in (await compare_files(self._store, comparisons)).items():
            seen = found[table_id]
            if isinstance(seen, TableProblem):
                looks[table_id] = _Look(None, Observation(remarks={(Kind.UNREADABLE, str(seen))}))
            elif isinstance(seen, TableUnavailable):
                looks[table_id] = _Look(None, Observation(remarks={(Kind.NO_ANSWER, str(seen))}), silent=True)
            elif seen is None or seen.digest is None:  # its files would all be missing: one reason is enough
                looks[table_id] = _Look(seen, Observation(remarks=set(remarks(seen, table, metadata))))
            else:
                looks[table_id] = _Look(seen, comparisons[table_id].observation(remarks(seen, table, metadata)))
        return looks

    async def _load(self, table: LakeTable) -> Committed | TableProblem | TableUnavailable | None:
        try:
            return await self._within(partial(look, self._tables, table, keep_files=True))
        except (TableProblem, TableUnavailable) as problem:
            return problem

    async def _leftovers(self) -> list[Difference]:
        """Iceberg tables of this registry's that it has no more."""
        if await self._store.get_source_identity("lake") is None:
            return []
        try:
            candidates = await self._unregistered()
            until = await self._store.position()
            while candidates:
                updater = await read_updater(self._store, self._options.lease, self._clock)
                last = updater.has_passed(until) or not updater.is_worth_waiting_for or self._is_late
                again = await self._unregistered()
                candidates = {table_id: name for table_id, name in candidates.items() if table_id in again}
                if last and candidates:
                    items = sorted(candidates.values())
                    return [Difference(Kind.NO_REGISTRY_TABLE, items, diagnosis.of_leftover(updater))]
                await self._clock.sleep(_PAUSE_S if candidates else 0)
        except TableProblem as problem:
            return [Difference(Kind.UNREADABLE, [str(problem)], Cause("Iceberg's metadata are damaged", None))]
        except TableUnavailable as trouble:
            return [Difference(Kind.NO_ANSWER, [str(trouble)], diagnosis.of_silence("some table of the catalog"))]
        return []

    async def _unregistered(self) -> dict[int, str]:
        self._tables.forget()
        names = await self._within(self._tables.names, times=10)  # of all tables
        known = {table.id for table in await self._store.list_tables()}
        return {table_id: ".".join(name) for table_id, name in names.items() if table_id not in known}

    async def _check_storage(self, table: RegisteredTable) -> None:
        report = self._reports.get(table.table.id)
        if report is None:
            return
        options = self._options
        check = StorageCheck(self._store, self._objects, checksums=options.checksums, parallel=options.parallel)
        try:
            stored = await check.run(table.table, table.total.files, self._progress)
        except StorageError as error:
            report.differences.append(Difference(Kind.NO_ANSWER, [str(error)], diagnosis.of_silence(table.name)))
            return
        report.objects_checked, report.bytes_checked = stored.checked, stored.bytes_read
        report.without_checksum = stored.without_checksum
        for kind, items in sorted(stored.found.items()):
            cause = diagnosis.of_missing_object if kind is Kind.FILE_MISSING else diagnosis.of_changed_object
            report.differences.append(Difference(kind, sorted(items), cause(table.name)))


def _differences(
    table: str, found: Committed | None, certain: Observation, verdict: _Verdict, trouble: FailingTable | None
) -> Iterable[Difference]:
    updater = verdict.updater
    if found is not None and found.foreign:
        yield Difference(Kind.FOREIGN_COMMIT, found.foreign, diagnosis.of_foreign_commit(table))

    def lagging(behind: int) -> Cause:
        if trouble is not None:
            return diagnosis.of_trouble(trouble)
        return diagnosis.of_files(table, behind, found, updater, verdict.passed, verdict.waited_s)

    for kind, text in sorted(certain.remarks):
        cause = _cause_of_remark(kind, table, text, updater, trouble) or lagging(behind=1)
        yield Difference(kind, [text], cause)
    files = sort(certain.missing, certain.extra)
    for kind, some in ((Kind.NOT_COMMITTED, files.missing), (Kind.NOT_REGISTERED, files.extra)):
        if some:
            items = [f"{file.path} ({file.rows:,} rows, {file.size_bytes:,} bytes)" for file in some]
            yield Difference(kind, items, lagging(behind=certain.files))
    if files.described:
        items = [
            f"{ours.path}: {ours.rows:,} rows, {ours.size_bytes:,} bytes, {ours.partition_path!r} registered, "
            f"{theirs.rows:,} rows, {theirs.size_bytes:,} bytes, {theirs.partition_path!r} in Iceberg"
            for ours, theirs in files.described
        ]
        yield Difference(Kind.DESCRIBED_DIFFERENTLY, items, lagging(behind=certain.files))


def _cause_of_remark(
    kind: Kind, table: str, text: str, updater: UpdaterState, trouble: FailingTable | None
) -> Cause | None:
    match kind:
        case Kind.STOPPED if trouble is None:
            return diagnosis.of_stop(table, text, updater)
        case Kind.UNREADABLE:
            return diagnosis.of_unreadable(text)
        case Kind.NO_ANSWER:
            return diagnosis.of_silence(table)
        case Kind.STAMP:
            return diagnosis.of_stamp(table, updater)
        case Kind.TWICE:
            return diagnosis.of_double()
        case _:
            return None
