"""Commits: each is one transaction of the registry, or nothing.

    requests -> prepared parts (metadata, difference of files) -> metadata files written -> the registry's transaction

The pointer of each table is compared and swapped in that transaction. If another commit was first, the parts are
prepared again on the new state, as long as their requirements hold there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.tasks import to_completion
from components.commands.catalog.errors import (
    AlreadyExists,
    BadRequest,
    CatalogError,
    CommitFailed,
    CommitStateUnknown,
    NoSuchTable,
    Unavailable,
)
from components.commands.catalog.metadata_files import MetadataFiles
from components.commands.catalog.metadata_writer import MetadataWriter
from components.commands.catalog.prepared_commit import PreparedCommit
from components.commands.catalog.tables import LoadedTable
from components.lib.lake.iceberg.catalog import NAME
from registry import errors as registry_errors
from registry.contract import MetadataStore
from registry.models import CatalogRequest

log = structlog.get_logger(__name__)

Prepare = Callable[[], Awaitable[Sequence[PreparedCommit]]]

_ATTEMPTS = 5
_BACKOFF = Backoff(initial_s=0.02, max_s=0.5)
_OUTCOME_ATTEMPTS = 4


class Commits:
    """Stores prepared commits. Any number of processes may do so at the same time."""

    def __init__(self, store: MetadataStore, files: MetadataFiles, writer: MetadataWriter, clock: LoopClock) -> None:
        self._store = store
        self._files = files
        self._writer = writer
        self._clock = clock

    async def commit(self, prepare: Prepare, request: CatalogRequest | None) -> list[LoadedTable]:
        """Returns the tables after the commit. `prepare` is called again if another commit was first."""
        attempt = 0
        while True:
            attempt += 1
            parts = await prepare()
            try:
                await to_completion(self._store_parts(parts, request))
            except registry_errors.Conflict as error:
                if attempt == _ATTEMPTS or not await self._moved(parts):
                    raise CommitFailed(str(error)) from error
                await self._clock.sleep(_BACKOFF.wait_s(attempt, self._clock))
                continue
            return [self._done(part) for part in parts]

    async def _store_parts(self, parts: Sequence[PreparedCommit], request: CatalogRequest | None) -> None:
        """Deletes the metadata files that it has written if the commit certainly did not happen. After an unexpected
        error they stay: the table may refer to them.
        """
        new = [part for part in parts if part.commit is not None]
        try:
            await self._writer.write(new)
            await self._store.commit_catalog([part.commit for part in new if part.commit], request=request)
        except registry_errors.Unavailable as error:
            if not new:
                raise
            await self._require_outcome(new, error)
        except (registry_errors.RegistryError, CatalogError) as error:
            await self._writer.discard(new)
            known = _translated(error, new)
            if known is None:
                raise
            raise known from error

    async def _require_outcome(self, new: Sequence[PreparedCommit], error: registry_errors.Unavailable) -> None:
        """Returns if the commit happened. Raises CommitFailed if it certainly did not, else CommitStateUnknown."""
        for attempt in range(1, _OUTCOME_ATTEMPTS):
            try:
                happened = await self._happened(new)
            except (registry_errors.Unavailable, Unavailable):
                await self._clock.sleep(_BACKOFF.wait_s(attempt, self._clock))
                continue
            if happened is None:
                break
            if happened:
                return
            await self._writer.discard(new)
            raise CommitFailed("another commit was first") from error
        log.warning("outcome of a commit is unknown", tables=[str(part.table) for part in new], error=str(error))
        raise CommitStateUnknown("the registry has not confirmed the commit: load the table to see whether it happened")

    async def _happened(self, new: Sequence[PreparedCommit]) -> bool | None:
        """Returns None if it may happen yet: the pointer is still the expected one."""
        part = new[0]  # all tables, or none
        row = await self._store.get_catalog_table(NAME, *part.table)
        found = None if row is None else row.metadata_location
        if found == part.location:
            return True
        if found == part.base_location:
            return None
        if found is None:
            return False if part.base_location is not None else None
        current = await self._files.parsed(found)
        return any(entry.metadata_file == part.location for entry in current.metadata_log)

    async def _moved(self, parts: Sequence[PreparedCommit]) -> bool:
        """Returns whether a pointer is not the one that was read: then it is worth preparing again."""
        rows = await asyncio.gather(*(self._store.get_catalog_table(NAME, *part.table) for part in parts))
        return any(
            (None if row is None else row.metadata_location) != part.base_location
            for part, row in zip(parts, rows, strict=True)
        )

    def _done(self, part: PreparedCommit) -> LoadedTable:
        if part.file is not None:
            self._files.keep(part.location, part.file.json, part.metadata)
            self._writer.remove_replaced(part)
        return LoadedTable(part.location, part.json)


def _translated(error: Exception, new: Sequence[PreparedCommit]) -> CatalogError | None:
    """Returns the response for an error of the registry, or None if it is handled elsewhere."""
    names = ", ".join(str(part.table) for part in new)
    match error:
        case registry_errors.AlreadyCommitted():
            return None
        case registry_errors.AlreadyExists():
            return AlreadyExists(f"Table already exists: {names}")
        case registry_errors.NotFound():
            return NoSuchTable(names)
        case registry_errors.Invalid():
            return BadRequest(str(error))
        case _:
            return None
