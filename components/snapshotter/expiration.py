"""Snapshots expire, and files that no snapshot needs any more are deleted. Nothing here lists a store.

Safe to interrupt at any point and to run in several processes: each step leaves what the next run finds and finishes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial

import msgspec
import structlog

from components.lib.lake.iceberg import CatalogUnavailable, IcebergTables, Stamp, TableUnavailable
from components.lib.lake.iceberg.tables import Identifier
from components.lib.lake.registration.upload_intents import CleanupResult, clean_intents, purpose_of
from components.lib.lake.storage.objects import Objects, StorageError
from components.lib.lake.storage.roots import known_roots, refusals
from components.lib.lake.updater_state import read_failing_tables
from components.snapshotter.policy import Policy, read_policy
from components.snapshotter.reachability import required
from components.snapshotter.retention import Verdict, judge_files, judge_snapshots
from components.snapshotter.snapshot_requests import Call, Comparison, covers, ledger_entry
from components.snapshotter.table_state import awaits_release
from components.snapshotter.tags import release, retire
from registry.clock import Clock
from registry.contract import PAGE, MetadataStore
from registry.errors import RegistryError
from registry.inputs import SnapshotDraft
from registry.json_text import parse_json
from registry.models import FileAwaitingDeletion, LakeTable, TableSnapshot

log = structlog.get_logger(__name__)

PURPOSE = "deletion"
OWNER = "snapshotter"

_PORTION = 50_000
"""Files that are judged together: the manifests are read once a portion."""


class Report(msgspec.Struct):
    """Of one table, or of one that is gone (then the name is its id)."""

    table: str
    verdicts: list[Verdict] = []
    released: list[int] = []  # rows whose Iceberg tags, and what they alone held, are gone
    problem: str | None = None

    @property
    def gone(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.goes]


class Lifecycle:
    """``defaults`` and ``updater`` as in the component's settings."""

    def __init__(
        self,
        store: MetadataStore,
        tables: IcebergTables,
        call: Call,
        objects: Objects,
        clock: Clock,
        *,
        defaults: Policy | None = None,
        updater: str = "iceberg_updater",
    ) -> None:
        self._store = store
        self._tables = tables
        self._call = call
        self._objects = objects
        self._clock = clock
        self._defaults = defaults or Policy()
        self._updater = updater
        self._owner = f"{OWNER}-{secrets.token_hex(8)}"

    async def expire(self, table: LakeTable, *, tags: Collection[str] = (), dry_run: bool = False) -> Report:
        """What the policy no longer keeps, or the snapshots of these tags. PolicyProblem if it can't be read."""
        policy = await self.policy(table)
        rows = await self._rows(table.id)
        report = Report(_name(table), judge_snapshots(rows, policy, self._clock.now_ms(), tags))
        if dry_run:
            return report
        going = {verdict.id: verdict for verdict in report.gone}
        expired = [row for row in rows if row.id in going]
        if expired:
            # Iceberg first: the registry gives the name away again as soon as it says that the old one has expired.
            await self._call(partial(retire, self._tables, table, expired))
            for row in expired:
                await self._store.update_snapshot(row.id, _ended(row, reason=f"expired: {going[row.id].why}"))
        report.released = await self._release(table, policy)
        return report

    async def _release(self, table: LakeTable, policy: Policy) -> list[int]:
        """Expired ones whose grace is over."""
        over = self._clock.now_ms() - policy.grace_ms
        rows = [row for row in await self._rows(table.id) if awaits_release(row) and row.updated_at <= over]
        if not rows:
            return []
        unreferenced = await self._call(partial(release, self._tables, table, [row.id for row in rows]))
        if unreferenced:
            await self._store.record_intents(unreferenced, purpose="metadata", owner=OWNER)
        for row in rows:
            await self._store.update_snapshot(row.id, _ended(row, reason=row.reason, released=True))
        return [row.id for row in rows]

    async def clean(
        self, table_id: int | None = None, *, dry_run: bool = False, removed_before: int | None = None
    ) -> list[Report]:
        """Files that await deletion, table by table. One table's trouble is in its report: its files stay, with the
        reason, and the others go on.
        """
        reports: dict[int, Report] = {}
        async for owner, files in self._awaiting(table_id, removed_before):
            table = await self._store.get_table_by_id(owner)
            report = reports.setdefault(owner, Report(f"table {owner}" if table is None else _name(table)))
            try:
                verdicts = await (self._judge_dropped(owner, files) if table is None else self._judge(table, files))
            except (RegistryError, asyncio.CancelledError):
                raise
            except Exception as problem:  # whatever it is, nobody knows what the table's snapshots need
                if isinstance(problem, CatalogUnavailable) and not isinstance(problem, TableUnavailable):
                    raise
                report.problem = str(problem) or repr(problem)
                report.verdicts += judge_files(files, {}, 0, self._clock.now_ms(), behind=report.problem)
                continue
            try:
                report.verdicts += await (self._refused(verdicts) if dry_run else self._deleted(owner, verdicts))
            except StorageError as problem:
                report.problem = str(problem)
        return list(reports.values())

    async def clean_intents(self, older_than_s: float, *, dry_run: bool = False) -> CleanupResult:
        """What writers have announced and left, replaced metadata, and files that a cleaner has claimed and died."""
        return await clean_intents(self._store, self._objects, int(older_than_s * 1000), self._owner, dry_run=dry_run)

    async def policy(self, table: LakeTable) -> Policy:
        metadata = await self._store.get_table_metadata(table.id)
        return self._defaults if metadata is None else read_policy(parse_json(metadata.properties), self._defaults)

    async def _judge(self, table: LakeTable, files: Sequence[FileAwaitingDeletion]) -> list[Verdict]:
        policy = await self.policy(table)
        position = await self._store.position()  # whoever is past it has seen all of the files go
        judge = partial(judge_files, files, grace_ms=policy.grace_ms, now_ms=self._clock.now_ms())
        if all(not verdict.goes for verdict in judge({})):
            return judge({})  # none is due
        loaded = await self._call(partial(self._tables.load, table))
        named = [row for row in await self._rows(table.id) if row.status == "created" or awaits_release(row)]
        paths = [file.file_path for file in files]
        needed = await self._call(partial(required, self._tables, table, loaded, named, paths))
        if loaded is None:
            metadata = await self._store.get_table_metadata(table.id)
            if metadata is not None and metadata.format != "parquet":
                return judge(needed)  # not in Iceberg
            return judge(needed, behind="its Iceberg table is not there, so nobody knows what its snapshots need")
        stamp = Stamp.read(loaded.metadata)
        if await covers(self._store, self._updater, stamp, position):
            return judge(needed)
        trouble = (await read_failing_tables(self._store)).get(table.id)
        if trouble is not None:
            return judge(needed, behind=trouble.summary)
        entry = await ledger_entry(self._store, self._updater)
        if entry is not None and entry.refresh_owed:
            return judge(needed, behind=f"the Iceberg updater owes a refresh ({entry.reason})")
        if entry is not None and entry.position is not None and entry.position >= position:
            return judge(needed)
        fresh = await self._store.get_table_by_id(table.id)
        if fresh is None or not await Comparison(self._store).equal(fresh, stamp):
            return judge(needed, behind="Iceberg has not caught up with the registry")
        current = loaded.metadata.current_snapshot()
        return judge(needed, uncertain_since=0 if current is None else current.timestamp_ms)

    async def _judge_dropped(self, table_id: int, files: Sequence[FileAwaitingDeletion]) -> list[Verdict]:
        judge: Callable[..., list[Verdict]] = partial(
            judge_files, files, {}, self._defaults.grace_ms, self._clock.now_ms()
        )
        if all(not verdict.goes for verdict in judge()):
            return judge()

        def names() -> tuple[Collection[int], Collection[Identifier]]:
            self._tables.forget()
            return self._tables.names(), self._tables.unreadable

        known, unreadable = await self._call(names)
        if table_id in known:
            return judge(behind="the table was dropped, but is still in the Iceberg catalog")
        for identifier in unreadable:
            *namespace, name = identifier
            if await self._store.get_table(".".join(namespace), name) is None:
                shown = ".".join(identifier)
                return judge(
                    behind=f"the Iceberg catalog has {shown}, which can't be read and may be this one: drop it"
                )
        return judge()

    async def _deleted(self, table_id: int, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Claimed first: what a rollback has brought back meanwhile is not, what was claimed can't come back."""
        verdicts = await self._refused(verdicts)
        ids = [verdict.id for verdict in verdicts if verdict.goes]
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
            size = sum(verdict.size_bytes for verdict in verdicts if verdict.id in taken)
            log.info("files deleted", table_id=table_id, files=len(taken), bytes=size)
        return [
            verdict if not verdict.goes or verdict.id in taken else _kept(verdict, "somebody else has taken it over")
            for verdict in verdicts
        ]

    async def _refused(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Files outside of the lake stay, whatever the registry says."""
        paths = [verdict.name for verdict in verdicts if verdict.goes]
        roots = await known_roots(self._store, self._objects.roots, above=paths)
        refused = await asyncio.to_thread(refusals, roots, paths)
        for path, reason in refused.items():
            log.warning("a file that awaits deletion must not be deleted", path=path, reason=reason)
        return [_kept(verdict, refused[verdict.name]) if verdict.name in refused else verdict for verdict in verdicts]

    async def _awaiting(
        self, table_id: int | None, removed_before: int | None
    ) -> AsyncIterator[tuple[int, list[FileAwaitingDeletion]]]:
        """By table, in portions that memory can hold."""
        found: defaultdict[int, list[FileAwaitingDeletion]] = defaultdict(list)
        held = after = 0
        while page := await self._store.list_files_awaiting_deletion(
            table_id=table_id, removed_before=removed_before, after=after
        ):
            for file in page:
                found[file.table_id].append(file)
            after, held = page[-1].id, held + len(page)
            if held >= _PORTION:
                for portion in found.items():
                    yield portion
                found.clear()
                held = 0
        for portion in found.items():
            yield portion

    async def _rows(self, table_id: int) -> list[TableSnapshot]:
        rows: list[TableSnapshot] = []
        while page := await self._store.list_snapshots(table_id, after=rows[-1].id if rows else 0, limit=PAGE):
            rows += page
        return rows


def _name(table: LakeTable) -> str:
    return f"{table.database}.{table.name}"


def _kept(verdict: Verdict, why: str) -> Verdict:
    return msgspec.structs.replace(verdict, goes=False, why=why)


def _ended(row: TableSnapshot, *, reason: str | None, released: bool = False) -> SnapshotDraft:
    return SnapshotDraft(
        snapshot_id=row.snapshot_id,
        timestamp=row.timestamp,
        manifest_list=None if released else row.manifest_list,
        summary=row.summary,
        schema_id=row.schema_id,
        trigger=row.trigger,
        status="expired",
        tag=row.tag,
        reason=reason,
    )
