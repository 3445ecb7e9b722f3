"""Deletes files that await deletion once no snapshot needs them. Never lists storage.

Can be interrupted at any point and run in several processes: the next run finds and finishes what is left.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import msgspec
import structlog

from components.lib.lake.iceberg import CatalogUnavailable, IcebergTables, Stamp, TableUnavailable
from components.lib.lake.iceberg.tables import Identifier
from components.lib.lake.registration.upload_intents import CleanupResult, clean_intents, purpose_of
from components.lib.lake.storage.objects import Objects, StorageError
from components.lib.lake.storage.roots import known_roots, refusals
from components.lib.lake.table_lookup import full_name
from components.lib.lake.updater_state import read_failing_tables
from components.lib.ledger_entry import ledger_entry
from components.snapshotter.expiration import OWNER, snapshot_rows, table_policy
from components.snapshotter.policy import SnapshotPolicy
from components.snapshotter.reachability import required
from components.snapshotter.retention import RetentionDecision, RetentionReport, decide_files
from components.snapshotter.snapshot_requests import BlockingCall, RegistryComparison, covers
from components.snapshotter.table_state import awaits_release
from registry.clock import Clock
from registry.contract import PAGE, MetadataStore
from registry.errors import RegistryError
from registry.models import FileAwaitingDeletion, LakeTable

log = structlog.get_logger(__name__)

PURPOSE = "deletion"

_BATCH = 50_000
"""Files to decide about together: the manifests are read once per batch."""


class _CatalogScan(msgspec.Struct, frozen=True):
    known: frozenset[int]  # ids of the tables in the Iceberg catalog
    unreadable: frozenset[Identifier]


class FileCleanup:
    """`defaults` is the policy of tables without properties of their own, `updater` the name of the Iceberg updater."""

    def __init__(
        self,
        store: MetadataStore,
        tables: IcebergTables,
        call: BlockingCall,
        objects: Objects,
        clock: Clock,
        *,
        defaults: SnapshotPolicy | None = None,
        updater: str = "iceberg_updater",
    ) -> None:
        self._store = store
        self._tables = tables
        self._call = call
        self._objects = objects
        self._clock = clock
        self._defaults = defaults or SnapshotPolicy()
        self._updater = updater
        self._owner = f"{OWNER}-{secrets.token_hex(8)}"
        self._scanned: _CatalogScan | None = None

    async def clean(
        self, table_id: int | None = None, *, dry_run: bool = False, removed_before: int | None = None
    ) -> list[RetentionReport]:
        """Deletes files that await deletion, table by table.

        A table that fails keeps all of its files, and its report names the problem; the other tables are cleaned.
        """
        reports: dict[int, RetentionReport] = {}
        self._scanned = None
        async for owner, files in self._awaiting(table_id, removed_before):
            table = await self._store.get_table_by_id(owner)
            name = f"table {owner}" if table is None else full_name(table)
            report = reports.setdefault(owner, RetentionReport(name))
            try:
                decisions = await (self._decide_dropped(owner, files) if table is None else self._decide(table, files))
            except (RegistryError, asyncio.CancelledError):
                raise
            except Exception as problem:  # whatever it is, the needs of the table's snapshots are unknown
                if isinstance(problem, CatalogUnavailable) and not isinstance(problem, TableUnavailable):
                    raise
                report.problem = str(problem) or repr(problem)
                report.decisions += decide_files(files, {}, 0, self._clock.now_ms(), behind=report.problem)
                continue
            try:
                report.decisions += await (self._refuse(decisions) if dry_run else self._delete(owner, decisions))
            except StorageError as problem:
                report.problem = str(problem)
        return list(reports.values())

    async def clean_intents(self, older_than_s: float, *, dry_run: bool = False) -> CleanupResult:
        """Deletes files of abandoned uploads, replaced metadata files, and files that a dead cleaner had claimed."""
        return await clean_intents(self._store, self._objects, int(older_than_s * 1000), self._owner, dry_run=dry_run)

    async def _decide(self, table: LakeTable, files: Sequence[FileAwaitingDeletion]) -> list[RetentionDecision]:
        policy = await table_policy(self._store, table, self._defaults)
        position = await self._store.position()  # an updater that has passed it has seen all of the removals
        decide = partial(decide_files, files, grace_ms=policy.grace_ms, now_ms=self._clock.now_ms())
        if all(not decision.remove for decision in decide({})):
            return decide({})  # none is due
        loaded = await self._call(partial(self._tables.load, table))
        rows = await snapshot_rows(self._store, table.id)
        retained = [row for row in rows if row.status == "created" or awaits_release(row)]
        paths = [file.file_path for file in files]
        needed = await self._call(partial(required, self._tables, table, loaded, retained, paths))
        if loaded is None:
            metadata = await self._store.get_table_metadata(table.id)
            if metadata is not None and metadata.format != "parquet":
                return decide(needed)  # not in Iceberg
            return decide(needed, behind="its Iceberg table is missing, so the needs of its snapshots are unknown")
        stamp = Stamp.read(loaded.metadata)
        if await covers(self._store, self._updater, stamp, position):
            return decide(needed)
        trouble = (await read_failing_tables(self._store)).get(table.id)
        if trouble is not None:
            return decide(needed, behind=trouble.summary)
        entry = await ledger_entry(self._store, self._updater)
        if entry is not None and entry.refresh_owed:
            return decide(needed, behind=f"the Iceberg updater owes a refresh ({entry.reason})")
        if entry is not None and entry.position is not None and entry.position >= position:
            return decide(needed)
        fresh = await self._store.get_table_by_id(table.id)
        if fresh is None or not await RegistryComparison(self._store).equal(fresh, stamp):
            return decide(needed, behind="Iceberg has not caught up with the registry")
        current = loaded.metadata.current_snapshot()
        return decide(needed, uncertain_since=0 if current is None else current.timestamp_ms)

    async def _decide_dropped(self, table_id: int, files: Sequence[FileAwaitingDeletion]) -> list[RetentionDecision]:
        decide: Callable[..., list[RetentionDecision]] = partial(
            decide_files, files, {}, self._defaults.grace_ms, self._clock.now_ms()
        )
        if all(not decision.remove for decision in decide()):
            return decide()

        scan = await self._scan()
        if table_id in scan.known:
            return decide(behind="the table was dropped, but is still in the Iceberg catalog")
        for identifier in scan.unreadable:
            *namespace, name = identifier
            if await self._store.get_table(".".join(namespace), name) is None:
                shown = ".".join(identifier)
                return decide(
                    behind=f"{shown} in the Iceberg catalog cannot be read and may be this table: drop it there"
                )
        return decide()

    async def _scan(self) -> _CatalogScan:
        """Scans the catalog once per `clean`: a dropped table does not come back to it under its id."""

        def scan() -> _CatalogScan:
            self._tables.forget()
            return _CatalogScan(frozenset(self._tables.names()), self._tables.unreadable)

        if self._scanned is None:
            self._scanned = await self._call(scan)
        return self._scanned

    async def _delete(self, table_id: int, decisions: Sequence[RetentionDecision]) -> list[RetentionDecision]:
        """Claims the files first: a claimed file cannot be restored, and a restored one cannot be claimed."""
        decisions = await self._refuse(decisions)
        ids = [decision.id for decision in decisions if decision.remove]
        taken: set[int] = set()
        for start in range(0, len(ids), PAGE):
            claimed = await self._store.claim_files_awaiting_deletion(
                ids[start : start + PAGE], purpose=purpose_of(PURPOSE, table_id), owner=self._owner
            )
            paths = [file.file_path for file in claimed]
            await self._objects.delete_many(
                paths, roots=await known_roots(self._store, self._objects.roots, above=paths)
            )
            await self._store.complete_intents(paths)
            taken.update(file.id for file in claimed)
        if taken:
            size = sum(decision.size_bytes for decision in decisions if decision.id in taken)
            log.info("files deleted", table_id=table_id, files=len(taken), bytes=size)
        return [
            decision
            if not decision.remove or decision.id in taken
            else _kept(decision, "restored by a rollback, or claimed by another cleaner")
            for decision in decisions
        ]

    async def _refuse(self, decisions: Sequence[RetentionDecision]) -> list[RetentionDecision]:
        """Keeps files outside of the lake's locations, whatever the registry says."""
        paths = [decision.name for decision in decisions if decision.remove]
        roots = await known_roots(self._store, self._objects.roots, above=paths)
        refused = await asyncio.to_thread(refusals, roots, paths)
        for path, reason in refused.items():
            log.warning("file deletion refused", path=path, reason=reason)
        return [
            _kept(decision, refused[decision.name]) if decision.name in refused else decision for decision in decisions
        ]

    async def _awaiting(
        self, table_id: int | None, removed_before: int | None
    ) -> AsyncIterator[tuple[int, list[FileAwaitingDeletion]]]:
        """Yields the files by table, in batches that fit in memory."""
        found: defaultdict[int, list[FileAwaitingDeletion]] = defaultdict(list)
        held = after = 0
        while page := await self._store.list_files_awaiting_deletion(
            table_id=table_id, removed_before=removed_before, after=after
        ):
            for file in page:
                found[file.table_id].append(file)
            after, held = page[-1].id, held + len(page)
            if held >= _BATCH:
                for batch in found.items():
                    yield batch
                found.clear()
                held = 0
        for batch in found.items():
            yield batch


def _kept(decision: RetentionDecision, reason: str) -> RetentionDecision:
    return msgspec.structs.replace(decision, remove=False, reason=reason)
