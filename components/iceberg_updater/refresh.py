"""A refresh: compares Iceberg with one consistent snapshot of the registry and commits the difference.

The first pass over the files computes one digest per table. Only tables whose digest differs are compared file by file,
one after the other, and only their own rows are read again. A failure of one table does not affect the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from components.iceberg_updater.committer import Committer, TargetTable, is_iceberg
from components.iceberg_updater.committer_thread import CommitterThread
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import (
    CatalogUnavailable,
    LiveFileSet,
    StagedFiles,
    TableProblem,
    TableUnavailable,
    identifier_of,
)
from components.lib.lake.iceberg.tables import Identifier
from components.lib.lake.schema.table_schema import SchemaProblem
from registry.contract import ConsistentRead, MetadataStore
from registry.models import CatalogTable, IcebergCommit, LakeTable, TableDeleteFile, TableFile, TableMetadata

log = structlog.get_logger(__name__)

T = TypeVar("T")

_PAGE = 200
"""Files that are handled without yielding the event loop: about a millisecond."""

_PORTION = 5_000
"""Files whose manifests are written at a time."""


class RefreshFailure(msgspec.Struct, frozen=True):
    """Why a table could not be refreshed. `stopped`: an operator has to act."""

    table: str
    reason: str
    stopped: bool


class RefreshResult(msgspec.Struct):
    """`tables` has the name of each Iceberg table by id; all but the failed ones are up to date. `unreferenced` are
    metadata files that are no longer needed.
    """

    tables: dict[int, str] = {}
    failed: dict[int, RefreshFailure] = {}
    unreferenced: list[str] = []


class IcebergRefresh:
    """Refreshes all tables, or one. Raises `CatalogUnavailable`, and nothing else, if the catalog does not answer."""

    def __init__(self, store: MetadataStore, thread: CommitterThread, only: int | None = None) -> None:
        self._store = store
        self._thread = thread
        self._only = only
        self._pointers: dict[Identifier, str] | None = None
        self._result = RefreshResult()

    @property
    def _committer(self) -> Committer:
        """Changes when a call is abandoned."""
        return self._thread.committer

    async def run(self, snapshot: ConsistentRead) -> RefreshResult:
        if self._only is None:
            self._committer.tables.forget()
        targets = await self._read_targets(snapshot)
        self._result.tables = {table_id: target.name for table_id, target in targets.items()}
        if self._only is None:
            await self._drop_unregistered(targets)
        digests: defaultdict[int, Digest] = defaultdict(Digest)
        async for page in snapshot.rows(TableFile, page=_PAGE, table_id=self._only):
            for file in page:
                if file.table_id in targets:
                    digests[file.table_id].add(LiveFile.of(file))
        deletes = await self._read_deletes(snapshot)
        for table_id, target in targets.items():
            if not await self._ensure_table(target):
                continue
            newer_schema = await self._attempt(target, partial(self._committer.has_newer_schema, target))
            if newer_schema and await self._may_undo(snapshot, target):
                continue
            compare = partial(_compare, self._committer, target, digests[table_id], deletes[table_id])
            live = await self._attempt(target, compare)
            if live is not None and not await self._may_undo(snapshot, target):
                await self._commit_difference(snapshot, target, live, deletes[table_id])
        return self._result

    async def _read_targets(self, snapshot: ConsistentRead) -> dict[int, TargetTable]:
        metadata: defaultdict[int, dict[int, TableMetadata]] = defaultdict(dict)
        async for versions in snapshot.rows(TableMetadata, table_id=self._only):
            for row in versions:
                metadata[row.table_id][row.schema_version] = row
        await self._read_pointers(snapshot)
        targets: dict[int, TargetTable] = {}
        claimed = []
        async for tables in snapshot.rows(LakeTable):
            for table in tables:
                claimed.append(identifier_of(table))
                if table.id in metadata and is_iceberg(metadata[table.id].values()):
                    pointer = msgspec.UNSET if self._pointers is None else self._pointers.get(identifier_of(table))
                    targets[table.id] = TargetTable(table, metadata[table.id], pointer=pointer)
        self._committer.tables.claimed = frozenset(claimed)
        return targets

    async def _read_pointers(self, snapshot: ConsistentRead) -> None:
        """Engines commit to registry and Iceberg together: the pointers of this snapshot lead to the files that
        Iceberg had when the registry had those of this snapshot.
        """
        tables = self._committer.tables
        if not tables.in_registry:
            return
        self._pointers = {}
        async for page in snapshot.rows(CatalogTable):
            for row in page:
                if row.catalog_name == tables.catalog.name and row.metadata_location is not None:
                    self._pointers[(*row.table_namespace.split("."), row.table_name)] = row.metadata_location

    async def _read_deletes(self, snapshot: ConsistentRead) -> defaultdict[int, list[TableDeleteFile]]:
        deletes: defaultdict[int, list[TableDeleteFile]] = defaultdict(list)
        async for page in snapshot.rows(TableDeleteFile, table_id=self._only):
            for row in page:
                deletes[row.table_id].append(row)
        return deletes

    async def _drop_unregistered(self, targets: dict[int, TargetTable]) -> None:
        """Drops Iceberg tables that the registry no longer has, or has in another format. Their names are free then: a
        table of the registry that has one of them gets an Iceberg table of its own.
        """
        tables, freed = self._committer.tables, set()
        for table_id, name in list((await self._thread.call(tables.names)).items()):
            if table_id in targets:
                continue
            self._committer.forget(table_id)
            if await self._thread.call(partial(tables.drop, table_id, pointers=self._pointers)):
                log.info("unregistered Iceberg table dropped", table_id=table_id)
                freed.add(name)
        for target in targets.values():
            if identifier_of(target.table) in freed:
                target.pointer = None

    async def _may_undo(self, snapshot: ConsistentRead, target: TargetTable) -> bool:
        """Whether Iceberg may have changes of engines that the snapshot lacks, and that a commit would undo.

        None if it was compared as of the snapshot. Asked after Iceberg was read: later commits conflict with ours.
        """
        if target.location is not None:
            return False
        table_id = target.table.id
        async with self._store.consistent_read() as now:
            last = await _last_commit(now, table_id)
        if last == await _last_commit(snapshot, table_id):
            return False
        reason = "an engine has committed to it after the registry was read: it is compared again"
        self._result.failed[table_id] = RefreshFailure(target.name, reason, stopped=False)
        return True

    async def _ensure_table(self, target: TargetTable) -> bool:
        """Starts with a small request, so that storage that does not answer is detected within a short time."""
        return bool(await self._attempt(target, partial(_ensure, self._committer, target), probe=True))

    async def _attempt(self, target: TargetTable, step: Callable[[], T], *, probe: bool = False) -> T | None:
        """Returns None after a failure of this table, which is added to the result."""
        stopped = True
        try:
            return await self._thread.call(step, table=target.table, probe=probe)
        except TableUnavailable as trouble:
            stopped, reason = False, str(trouble)
        except CatalogUnavailable:
            raise
        except (TableProblem, SchemaProblem) as problem:
            reason = str(problem)
        except Exception as error:
            log.exception("table refresh failed unexpectedly", table=target.name)
            reason = f"unexpected error: {error!r}"
        self._result.failed[target.table.id] = RefreshFailure(target.name, reason, stopped)
        if stopped:
            await self._thread.call(partial(self._committer.stop, target, reason))
        return None

    async def _commit_difference(
        self, snapshot: ConsistentRead, target: TargetTable, live: LiveFileSet, deletes: list[TableDeleteFile]
    ) -> None:
        """Writes manifests of missing files while the registry is read, then commits all of the difference at once.
        Memory is bounded by one portion of files, and by the set of live files.
        """
        staged: StagedFiles | None = None
        done = False
        try:
            async for files in self._missing(snapshot, target, live):
                staged = staged or await self._attempt(target, partial(self._committer.stage, target))
                if staged is None:
                    return
                if not await self._attempt(target, partial(_add_staged, self._committer, target, staged, files)):
                    return
            commit = partial(_commit, self._committer, target, staged, live, deletes)
            unreferenced = await self._attempt(target, commit)
            done = unreferenced is not None
            self._result.unreferenced += unreferenced or []
        finally:
            if staged is not None and not done:
                await self._thread.call(staged.discard)

    async def _missing(
        self, snapshot: ConsistentRead, target: TargetTable, live: LiveFileSet
    ) -> AsyncIterator[list[TableFile]]:
        """Yields the registry's files that Iceberg does not have, in portions, and takes the others out of the set."""
        missing: list[TableFile] = []
        async for page in snapshot.rows(TableFile, page=_PAGE, table_id=target.table.id):
            missing += [file for file in page if not live.take(LiveFile.of(file))]
            if len(missing) >= _PORTION:
                yield missing
                missing = []
        if missing:
            yield missing


async def _last_commit(snapshot: ConsistentRead, table_id: int) -> int:
    """Returns the id of the newest commit by an engine; 0 if there is none."""
    newest = 0
    async for page in snapshot.rows(IcebergCommit, table_id=table_id):
        newest = max(newest, *(row.id for row in page))
    return newest


def _ensure(committer: Committer, target: TargetTable) -> bool:
    committer.ensure(target)
    return True


def _compare(
    committer: Committer, target: TargetTable, digest: Digest, deletes: list[TableDeleteFile]
) -> LiveFileSet | None:
    return committer.live(target) if committer.has_different_files(target, digest, deletes) else None


def _add_staged(committer: Committer, target: TargetTable, staged: StagedFiles, files: list[TableFile]) -> bool:
    committer.add_staged(target, staged, files)
    return True


def _commit(
    committer: Committer,
    target: TargetTable,
    staged: StagedFiles | None,
    live: LiveFileSet,
    deletes: list[TableDeleteFile],
) -> list[str]:
    """Returns the metadata files that are no longer needed."""
    removed = committer.read_removed(target, live)
    done = committer.commit_difference(target, staged, removed, live.digest, live.snapshot_id, deletes)
    return [] if done is None else done.unreferenced
