"""A refresh: Iceberg compared with one consistent snapshot of the registry, and the difference committed.

The first pass over the files keeps a digest a table; only tables that differ are looked at file by file, in a second
pass that holds Iceberg's files of those tables and what is missing. One table's trouble is its own: the others are
brought up to date.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from components.iceberg_updater.committer import Committer, TableWork, is_iceberg
from components.iceberg_updater.thread import IcebergThread
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import CatalogUnavailable, TableProblem, TableUnavailable, identifier_of
from components.lib.lake.schema.table_schema import SchemaProblem
from registry.contract import ConsistentRead
from registry.models import LakeTable, TableFile, TableMetadata

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Failure(msgspec.Struct, frozen=True):
    """Why a table could not be brought up to date. `stopped`: a person has to do something."""

    table: str
    reason: str
    stopped: bool


class Outcome(msgspec.Struct):
    """`tables` are those that are for Iceberg, by id; all but the failed ones are up to date. `unreferenced` are
    metadata files that are no longer needed.
    """

    tables: dict[int, str] = {}
    failed: dict[int, Failure] = {}
    unreferenced: list[str] = []


class _Difference(msgspec.Struct):
    """`live` is what Iceberg has in snapshot `base` and the registry was not found to have; `before` all that Iceberg
    has.
    """

    live: dict[str, LiveFile]
    before: Digest
    base: int | None
    added: list[TableFile] = []
    removed: list[LiveFile] = []


class Refresh:
    """Of all tables, or of one. CatalogUnavailable, and nothing else, if the catalog itself does not answer."""

    def __init__(self, thread: IcebergThread, only: int | None = None) -> None:
        self._thread = thread
        self._call = thread.call
        self._only = only
        self._outcome = Outcome()

    @property
    def _committer(self) -> Committer:
        """Another one, once a call was left behind with the one before."""
        return self._thread.committer

    async def run(self, snapshot: ConsistentRead) -> Outcome:
        if self._only is None:
            self._committer.tables.forget()
        works = await self._works(snapshot)
        self._outcome.tables = {table_id: work.name for table_id, work in works.items()}
        if self._only is None:
            await self._drop_gone(works)
        digests: defaultdict[int, Digest] = defaultdict(Digest)
        async for page in snapshot.rows(TableFile, table_id=self._only):
            for file in page:
                if file.table_id in works:
                    digests[file.table_id].add(LiveFile.of(file))
        differences: dict[int, _Difference] = {}
        for table_id, work in works.items():
            if not await self._there(work):
                continue
            found = await self._guarded(work, partial(_compare, self._committer, work, digests[table_id]))
            if found is not None:
                differences[table_id] = found
        if differences:
            await self._read_files(snapshot, differences)
        for table_id, difference in differences.items():
            work = works[table_id]
            settled = await self._guarded(work, partial(_settle, self._committer, work, difference))
            self._outcome.unreferenced += settled or []
        return self._outcome

    async def _works(self, snapshot: ConsistentRead) -> dict[int, TableWork]:
        metadata: defaultdict[int, dict[int, TableMetadata]] = defaultdict(dict)
        async for versions in snapshot.rows(TableMetadata, table_id=self._only):
            for row in versions:
                metadata[row.table_id][row.schema_version] = row
        works: dict[int, TableWork] = {}
        claimed = []
        async for tables in snapshot.rows(LakeTable):
            for table in tables:
                claimed.append(identifier_of(table))
                if table.id in metadata and is_iceberg(metadata[table.id].values()):
                    works[table.id] = TableWork(table, metadata[table.id])
        self._committer.tables.claimed = frozenset(claimed)
        return works

    async def _drop_gone(self, works: dict[int, TableWork]) -> None:
        """Tables that the registry has no more, or for another engine now."""
        tables = self._committer.tables
        for table_id in set(await self._call(tables.names)) - works.keys():
            self._committer.forget(table_id)
            if await self._call(partial(tables.drop, table_id)):
                log.info("Iceberg table dropped: the registry has none", table_id=table_id)

    async def _there(self, work: TableWork) -> bool:
        """First a small request: a storage that does not answer shows here, within a short time."""

        return bool(await self._guarded(work, partial(_ensure, self._committer, work), brief=True))

    async def _guarded(self, work: TableWork, step: Callable[[], T], *, brief: bool = False) -> T | None:
        """One table's trouble is its own, unless the catalog itself does not answer."""
        stopped = True
        try:
            return await self._call(step, table=work.table, brief=brief)
        except TableUnavailable as trouble:
            stopped, reason = False, str(trouble)
        except CatalogUnavailable:
            raise
        except (TableProblem, SchemaProblem) as problem:
            reason = str(problem)
        except Exception as error:
            log.exception("unexpected trouble with a table", table=work.name)
            reason = f"unexpected trouble: {error!r}"
        self._outcome.failed[work.table.id] = Failure(work.name, reason, stopped)
        if stopped:
            await self._call(partial(self._committer.stop, work, reason))
        return None

    async def _read_files(self, snapshot: ConsistentRead, differences: dict[int, _Difference]) -> None:
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


def _ensure(committer: Committer, work: TableWork) -> bool:
    schemas = committer.schemas(work)
    committer.tables.ensure(work.table, schemas[max(schemas)])
    return True


def _compare(committer: Committer, work: TableWork, digest: Digest) -> _Difference | None:
    if not committer.compare(work, digest):
        return None
    base, live = committer.live(work)
    before = Digest()
    for file in live.values():
        before.add(file)
    return _Difference(live, before, base)


def _settle(committer: Committer, work: TableWork, difference: _Difference) -> list[str]:
    """Metadata files that are no longer needed."""
    done = committer.settle(work, difference.added, difference.removed, difference.before, difference.base)
    return [] if done is None else done.unreferenced
