"""A refresh: Iceberg compared with one consistent snapshot of the registry, and the difference committed.

The first pass over the files keeps a digest a table; only tables that differ are looked at file by file, in a second
pass that holds Iceberg's files of those tables and what is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import msgspec
import structlog

from astha.errors import Retry
from components.iceberg_updater.committer import Committer, TableWork, is_iceberg
from components.lake.digest import Digest, LiveFile
from components.lake.iceberg import CatalogTrouble, TableProblem
from components.lake.schema import SchemaProblem
from registry.contract import ConsistentRead
from registry.models import LakeTable, TableFile, TableMetadata

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Call(Protocol):
    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


class _Difference(msgspec.Struct):
    """`live` is what Iceberg has and the registry was not found to have; `before` all that Iceberg has."""

    live: dict[str, LiveFile]
    before: Digest
    added: list[TableFile] = []
    removed: list[LiveFile] = []


class Refresh:
    def __init__(self, committer: Committer, call: Call) -> None:
        self._committer = committer
        self._call = call
        self._unreferenced: list[str] = []

    async def run(self, snapshot: ConsistentRead) -> list[str]:
        """Answers the metadata files that are no longer needed. A table that can't be helped is stopped, no more."""
        self._committer.tables.forget()
        works = await self._works(snapshot)
        await self._drop_gone(works)
        digests: defaultdict[int, Digest] = defaultdict(Digest)
        async for page in snapshot.rows(TableFile):
            for file in page:
                if file.table_id in works:
                    digests[file.table_id].add(LiveFile.of(file))
        differences: dict[int, _Difference] = {}
        for table_id, work in works.items():
            found = await self._guarded(work, partial(self._compare, work, digests[table_id]))
            if found is not None:
                differences[table_id] = found
        if differences:
            await self._read_files(snapshot, differences)
        for table_id, difference in differences.items():
            await self._guarded(works[table_id], partial(self._settle, works[table_id], difference))
        return self._unreferenced

    async def _works(self, snapshot: ConsistentRead) -> dict[int, TableWork]:
        metadata: defaultdict[int, dict[int, TableMetadata]] = defaultdict(dict)
        async for versions in snapshot.rows(TableMetadata):
            for row in versions:
                metadata[row.table_id][row.schema_version] = row
        works: dict[int, TableWork] = {}
        async for tables in snapshot.rows(LakeTable):
            for table in tables:
                if table.id in metadata and is_iceberg(metadata[table.id].values()):
                    works[table.id] = TableWork(table, metadata[table.id])
        return works

    async def _drop_gone(self, works: dict[int, TableWork]) -> None:
        """Tables that the registry has no more, or for another engine now."""
        tables = self._committer.tables
        for table_id in set(await self._call(tables.names)) - works.keys():
            self._committer.forget(table_id)
            if await self._call(partial(tables.drop, table_id)):
                log.info("Iceberg table dropped: the registry has none", table_id=table_id)

    async def _guarded(self, work: TableWork, step: Callable[[], T]) -> T | None:
        """One table's trouble is its own, unless the catalog itself does not answer."""
        try:
            return await self._call(step)
        except (Retry, CatalogTrouble):
            raise
        except (TableProblem, SchemaProblem) as problem:
            reason = str(problem)
        except Exception as error:
            log.exception("unexpected trouble with a table", table=work.name)
            reason = f"unexpected trouble: {error!r}"
        await self._call(partial(self._committer.stop, work, reason))
        return None

    def _compare(self, work: TableWork, digest: Digest) -> _Difference | None:
        if not self._committer.compare(work, digest):
            return None
        live = self._committer.live(work)
        before = Digest()
        for file in live.values():
            before.add(file)
        return _Difference(live, before)

    async def _read_files(self, snapshot: ConsistentRead, differences: dict[int, _Difference]) -> None:
        async for page in snapshot.rows(TableFile):
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

    def _settle(self, work: TableWork, difference: _Difference) -> None:
        done = self._committer.settle(work, difference.added, difference.removed, difference.before)
        if done is not None:
            self._unreferenced += done.unreferenced
