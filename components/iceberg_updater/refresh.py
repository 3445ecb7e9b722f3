"""A refresh: compares Iceberg with one consistent snapshot of the registry and commits the difference.

The first pass over the files computes one digest per table. Only tables whose digest differs are compared file by file,
in a second pass that holds their Iceberg files and the missing ones in memory. A failure of one table does not affect
the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from components.iceberg_updater.committer import Committer, TargetTable, is_iceberg
from components.iceberg_updater.committer_thread import CommitterThread
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import CatalogUnavailable, TableProblem, TableUnavailable, identifier_of
from components.lib.lake.iceberg.tables import Identifier
from components.lib.lake.schema.table_schema import SchemaProblem
from registry.contract import ConsistentRead, MetadataStore
from registry.models import CatalogTable, IcebergCommit, LakeTable, TableDeleteFile, TableFile, TableMetadata

log = structlog.get_logger(__name__)

T = TypeVar("T")


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


class _FileDifference(msgspec.Struct):
    """`live` holds the files of snapshot `base` that the registry was not found to have; `before` is the digest of all
    files of `base`.
    """

    live: dict[str, LiveFile]
    before: Digest
    base: int | None
    added: list[TableFile] = []
    removed: list[LiveFile] = []
    deletes: list[TableDeleteFile] = []  # all delete files of the registry


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
        async for page in snapshot.rows(TableFile, table_id=self._only):
            for file in page:
                if file.table_id in targets:
                    digests[file.table_id].add(LiveFile.of(file))
        deletes = await self._read_deletes(snapshot)
        differences: dict[int, _FileDifference] = {}
        for table_id, target in targets.items():
            if not await self._ensure_table(target):
                continue
            newer_schema = await self._attempt(target, partial(self._committer.has_newer_schema, target))
            if newer_schema and await self._may_undo(snapshot, target):
                continue
            compare = partial(_compare, self._committer, target, digests[table_id], deletes[table_id])
            found = await self._attempt(target, compare)
            if found is not None and not await self._may_undo(snapshot, target):
                differences[table_id] = found
        if differences:
            await self._compare_files(snapshot, differences)
        for table_id, difference in differences.items():
            target = targets[table_id]
            unreferenced = await self._attempt(target, partial(_commit, self._committer, target, difference))
            self._result.unreferenced += unreferenced or []
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

    async def _compare_files(self, snapshot: ConsistentRead, differences: dict[int, _FileDifference]) -> None:
        async for page in snapshot.rows(TableFile, table_id=self._only):
            for file in page:
                difference = differences.get(file.table_id)
                if difference is None:
                    continue
                known = difference.live.pop(file.file_path, None)
                if known != LiveFile.of(file):
                    difference.added.append(file)
                    if known is not None:
                        difference.removed.append(known)
        for difference in differences.values():
            difference.removed += difference.live.values()


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
) -> _FileDifference | None:
    if not committer.has_different_files(target, digest, deletes):
        return None
    base, live = committer.live(target)
    before = Digest()
    for file in live.values():
        before.add(file)
    return _FileDifference(live, before, base, deletes=deletes)


def _commit(committer: Committer, target: TargetTable, difference: _FileDifference) -> list[str]:
    """Returns the metadata files that are no longer needed."""
    done = committer.commit_difference(
        target, difference.added, difference.removed, difference.before, difference.base, difference.deletes
    )
    return [] if done is None else done.unreferenced
