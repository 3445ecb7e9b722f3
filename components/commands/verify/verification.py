"""`Verification`: compares the registry with itself, with Iceberg and with storage.

Digests first; single files only of tables whose digests differ, in batches of tables, so that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import msgspec

from astha.clock import LoopClock
from components.commands.verify import diagnosis
from components.commands.verify.diff import Finding, TableDiff
from components.commands.verify.iceberg_state import IcebergState, table_findings
from components.commands.verify.registry_state import RegisteredTable, batches, read_tables
from components.commands.verify.report import Cause, Difference, DifferenceKind, TableVerification, VerificationReport
from components.commands.verify.settled_diffs import PAUSE_S, DiffSettler, IcebergReader
from components.commands.verify.storage_check import ObjectReader, ProgressCallback, StorageCheck
from components.commands.verify.tags import compare_tags
from components.lib.lake.iceberg import IcebergTables, TableProblem, TableUnavailable
from components.lib.lake.storage.objects import StorageError
from components.lib.lake.table_lookup import full_name
from registry.contract import MetadataStore
from registry.errors import NotFound
from registry.models import LakeTable, TableSnapshot

_MAX_FILES = 500_000
_TAG_COMPARISONS = 3


class VerifyOptions(msgspec.Struct, frozen=True):
    """`timeout_s` limits the wait for the updater in total, and reading the metadata of one table."""

    files: bool = False
    checksums: bool = False
    repair_statistics: bool = False
    parallel: int = 8
    timeout_s: float = 120.0


class Verification:
    """`tables` must know the registry's identity, to find Iceberg tables that the registry no longer has."""

    def __init__(
        self,
        store: MetadataStore,
        tables: IcebergTables,
        objects: ObjectReader,
        clock: LoopClock,
        options: VerifyOptions | None = None,
        progress: ProgressCallback = lambda _table, _done, _total: None,
    ) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock
        self._options = options or VerifyOptions()
        self._progress = progress
        self._reader = IcebergReader(tables, self._options.timeout_s)
        self._reports: dict[int, TableVerification] = {}

    async def run(self, wanted: Collection[int] | None = None) -> VerificationReport:
        """Verifies all tables, or these. A table whose storage does not answer is a difference, and the others go on.

        Raises `CatalogUnavailable` or `Unavailable` if the catalog or the registry does not answer.
        """
        deadline = self._clock.monotonic() + self._options.timeout_s
        settler = DiffSettler(self._store, self._reader, self._clock, deadline)
        registered = await self._read_registered(wanted)
        suspects = [table for table in registered.values() if table.is_iceberg and not await self._is_equal(table)]
        for batch in batches(suspects, _MAX_FILES):
            await self._settle(settler, batch)
        for table in registered.values():
            if table.is_iceberg and table.table.id in self._reports:
                await self._check_tags(table.table)
        elsewhere = [] if wanted is not None else await self._find_leftovers(settler)
        if self._options.files or self._options.checksums:
            for table in registered.values():
                await self._check_storage(table)
        return VerificationReport(sorted(self._reports.values(), key=lambda report: report.table), elsewhere)

    async def _read_registered(self, wanted: Collection[int] | None) -> dict[int, RegisteredTable]:
        found = await read_tables(self._store, wanted)
        repaired = []
        if self._options.repair_statistics:
            repaired = [table.table.id for table in found.values() if any(table.wrong_statistics())]
            for table_id in repaired:
                with suppress(NotFound):  # dropped in the meantime
                    await self._store.recount_statistics(table_id)
            if repaired:
                found = await read_tables(self._store, wanted)
        for table_id, table in found.items():
            report = self._reports[table_id] = TableVerification(
                table.name, table.metadata.format, table.total.files, table.total.rows, table.total.size_bytes
            )
            report.delete_files, report.rows_deleted = table.deletes.total(), min(table.rows_deleted, table.total.rows)
            report.statistics_repaired = table_id in repaired
            wrong = list(table.wrong_statistics())
            if wrong:
                cause = diagnosis.of_statistics(table.name)
                report.differences.append(Difference(DifferenceKind.STATISTICS, wrong, cause))
        return found

    async def _is_equal(self, table: RegisteredTable) -> bool:
        try:
            found = await self._reader.read(table.table)
        except (TableProblem, TableUnavailable):
            return False
        if found is None or found.external_commits or found.digest != table.digest:
            return False
        self._describe(table.table.id, found)
        return not any(table_findings(found, table.table, table.metadata, table.deletes))

    def _describe(self, table_id: int, found: IcebergState | None) -> None:
        report = self._reports[table_id]
        if found is not None:
            report.digest = None if found.digest is None else str(found.digest)
            report.snapshot = found.loaded.metadata.current_snapshot_id
            report.position = found.stamp.position

    async def _settle(self, settler: DiffSettler, batch: list[RegisteredTable]) -> None:
        settled = await settler.settle([table.table.id for table in batch])
        for table in batch:
            table_id = table.table.id
            last = settled.last.get(table_id)
            if last is None:  # dropped in the meantime
                del self._reports[table_id]
                continue
            self._describe(table_id, last.found)
            certain = settled.certain.get(table_id, TableDiff())
            context = diagnosis.DiffContext(
                table.name,
                last.found,
                settled.updater,
                settled.troubled.get(table_id),
                settled.passed,
                settled.waited_s,
            )
            self._reports[table_id].differences += diagnosis.differences_of(certain, context)

    async def _check_tags(self, table: LakeTable) -> None:
        """The first comparison uses the metadata that was just read."""
        found = await self._tag_findings(table, cached=True)
        for _ in range(_TAG_COMPARISONS):
            if not found:
                return
            await self._clock.sleep(PAUSE_S)
            found &= await self._tag_findings(table, cached=False)
        if found and await self._store.get_table_by_id(table.id) is None:
            return  # dropped in the meantime with its rows; its Iceberg table follows
        for kind, cause in (
            (DifferenceKind.SNAPSHOT_LOST, diagnosis.of_lost_snapshot(full_name(table))),
            (DifferenceKind.TAG_UNKNOWN, diagnosis.of_unknown_tag()),
        ):
            items = sorted(text for of, text in found if of is kind)
            if items:
                self._reports[table.id].differences.append(Difference(kind, items, cause))

    async def _tag_findings(self, table: LakeTable, *, cached: bool) -> set[Finding]:
        """Reads Iceberg first, then the registry. An unreadable table has no findings: that is a difference already."""
        try:
            loaded = await self._reader.load(table, cached=cached)
        except (TableProblem, TableUnavailable):
            return set()
        rows: list[TableSnapshot] = []
        while page := await self._store.list_snapshots(table.id, after=rows[-1].id if rows else 0):
            rows += page
        return set(compare_tags(None if loaded is None else loaded.metadata, rows))

    async def _find_leftovers(self, settler: DiffSettler) -> list[Difference]:
        """Finds Iceberg tables of this registry that it no longer has."""
        if await self._store.get_source_identity("lake") is None:
            return []
        try:
            leftovers, updater = await settler.settle_leftovers()
        except TableProblem as problem:
            cause = Cause("Iceberg's metadata is damaged", None)
            return [Difference(DifferenceKind.UNREADABLE, [str(problem)], cause)]
        except TableUnavailable as trouble:
            cause = diagnosis.of_no_answer("some table of the catalog")
            return [Difference(DifferenceKind.NO_ANSWER, [str(trouble)], cause)]
        if updater is None:
            return []
        cause = diagnosis.of_leftover(updater)
        return [Difference(DifferenceKind.NO_REGISTRY_TABLE, sorted(leftovers.values()), cause)]

    async def _check_storage(self, table: RegisteredTable) -> None:
        report = self._reports.get(table.table.id)
        if report is None:
            return
        options = self._options
        check = StorageCheck(self._store, self._objects, checksums=options.checksums, parallel=options.parallel)
        try:
            result = await check.run(table.table, table.total.files, self._progress)
        except StorageError as error:
            cause = diagnosis.of_no_answer(table.name)
            report.differences.append(Difference(DifferenceKind.NO_ANSWER, [str(error)], cause))
            return
        report.objects_checked, report.bytes_checked = result.checked, result.bytes_read
        report.without_checksum = result.without_checksum
        for kind, items in sorted(result.found.items()):
            cause = diagnosis.of_object(kind, table.name)
            report.differences.append(Difference(kind, sorted(items), cause))
