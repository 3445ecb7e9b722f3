"""One request on its way to a snapshot: wait until Iceberg contains what was committed before it, then tag."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec
import structlog

from astha.clock import LoopClock
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import CatalogUnavailable, IcebergTables, Stamp, TableProblem
from components.snapshotter.tags import Pinned, Seen, look, pin, release
from components.snapshotter.turns import Turns
from registry.contract import MetadataStore
from registry.errors import AlreadyExists, NotFound, Unavailable
from registry.inputs import SnapshotDraft
from registry.json_text import to_json_text
from registry.models import LakeTable, LedgerEntry, TableSnapshot
from registry.position import Position

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0
_VISIBLE_AFTER_S = 5.0
"""PostgreSQL sends a commit before others can see it: only later is a missing row one that is gone."""

_TO_BE_COMPARED = "to be compared with the registry"
"""Why the updater has stopped a table that only waits for its refresh."""


class Call(Protocol):
    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


class Failed(Exception):
    """The request can't be met; the message is what its row will say."""


class Requests:
    """Everything here may be begun again at any point: the row says what is to be done, the tag what has been."""

    def __init__(
        self,
        store: MetadataStore,
        tables: IcebergTables,
        call: Call,
        clock: LoopClock,
        wait_s: float,
        turns: Turns,
        *,
        updater: str = "iceberg_updater",
    ) -> None:
        self._store = store
        self._tables = tables
        self._call = call
        self._clock = clock
        self._wait_s = wait_s
        self._turns = turns
        self._updater = updater

    async def fulfil(self, row: TableSnapshot, position: Position) -> TableSnapshot | None:
        """The row as it is afterwards; None if it no longer waits. Returns when the registry says what came of it.

        ``position``: where the registry was when the request was made, or later.
        """
        try:
            pinned = await self._pinned(row, position)
            if pinned is None:
                return None
            return await self._insist(lambda: self._store.update_snapshot(row.id, _created(row, pinned)))
        except Failed as failed:
            reason = str(failed)
        except AlreadyExists as error:  # a row of the same tag, which only this one can have been made for
            await self._release(row)
            reason = str(error)
        except NotFound:
            return None
        except Exception as error:
            log.exception("unexpected trouble with a request", table_id=row.table_id, request=row.id)
            reason = f"unexpected trouble: {error!r}"
        log.warning("no snapshot", table_id=row.table_id, request=row.id, tag=row.tag, reason=reason)
        try:
            return await self._insist(lambda: self._store.update_snapshot(row.id, _failed(row, reason)))
        except NotFound:
            return None

    async def _pinned(self, row: TableSnapshot, position: Position) -> Pinned | None:
        """The limit of waiting counts from the first look: while many are due it may take a while to get a turn."""
        began = math.inf
        comparison = Comparison(self._store)
        wait_s, behind = _FIRST_WAIT_S, "nobody has looked"
        while True:
            try:
                async with self._turns:
                    began = min(began, self._clock.monotonic())
                    table = await self._store.get_table_by_id(row.table_id)
                    stands = None if table is None else await self._stands(row)
                    if stands is False or (stands is None and self._clock.monotonic() >= began + _VISIBLE_AFTER_S):
                        return None
                    if table is not None and stands:
                        await self._require_iceberg(table)
                        found = await self._attempt(table, row, position, comparison)
                        if isinstance(found, Pinned):
                            return found
                        behind = found
            except (CatalogUnavailable, Unavailable) as trouble:
                behind = str(trouble)
            except TableProblem as problem:
                raise Failed(str(problem)) from problem
            if self._clock.monotonic() >= began + self._wait_s:
                raise Failed(f"given up after {self._wait_s:.0f} s: {behind}")
            await self._clock.sleep(self._turns.wait_s(wait_s))
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    async def _attempt(
        self, table: LakeTable, row: TableSnapshot, position: Position, comparison: Comparison
    ) -> Pinned | str:
        """Or what is still to be waited for."""
        seen = await self._call(lambda: look(self._tables, table, row))
        if seen is None:
            return "its Iceberg table has not been created yet: is the Iceberg updater running? see `astha status`"
        if seen.pinned is not None:
            return seen.pinned
        if await covers(self._store, self._updater, seen.stamp, position) or await comparison.equal(table, seen.stamp):
            return await self._call(lambda: pin(self._tables, table, row))
        return _behind(seen, position)

    async def _stands(self, row: TableSnapshot) -> bool | None:
        """Whether the request still waits: an event that comes again may be long out of date. None: no such row."""
        found = await self._store.list_snapshots(row.table_id, after=row.id - 1, limit=1)
        return found[0].status == "requested" if found and found[0].id == row.id else None

    async def _require_iceberg(self, table: LakeTable) -> None:
        metadata = await self._store.get_table_metadata(table.id)
        if metadata is not None and metadata.format != "parquet":
            raise Failed(f"{table.database}.{table.name} holds {metadata.format}: only Parquet tables are in Iceberg")

    async def _release(self, row: TableSnapshot) -> None:
        table = await self._insist(lambda: self._store.get_table_by_id(row.table_id))
        if table is not None:
            await self._insist(lambda: self._call(lambda: release(self._tables, table, [row.id])))

    async def _insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """What is done in Iceberg has to be said in the registry, however long that is out of reach."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                async with self._turns:
                    return await step()
            except (Unavailable, CatalogUnavailable) as error:
                log.warning("will be tried again", error=str(error), wait_s=wait_s)
            await self._clock.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


async def ledger_entry(store: MetadataStore, component: str) -> LedgerEntry | None:
    return next((found for found in await store.read_ledger() if found.component == component), None)


async def covers(store: MetadataStore, updater: str, stamp: Stamp, position: Position) -> bool:
    """Whether the stamp's position says that Iceberg contains what the registry had at ``position``.

    A position counts in this registry's own stream of changes only: while the updater has no ledger entry or owes a
    refresh (after `astha registry copy`, after a restore), the stamp may be from another stream.
    """
    if not stamp.covers(position):
        return False
    entry = await ledger_entry(store, updater)
    return entry is not None and not entry.refresh_owed


class Comparison(msgspec.Struct):
    """The registry's files with a stamp: for a table whose last change came long before, no position tells."""

    store: MetadataStore
    _last: tuple[LakeTable, Digest] | None = None

    async def equal(self, table: LakeTable, stamp: Stamp) -> bool:
        """Whether the registry, now, has the files of the stamp. Reads them only if they can be the same.

        Every change of files changes the table's row as well: if that is the same before and after, nothing came
        between the pages.
        """
        if table.file_count != stamp.digest.files or self._last == (table, stamp.digest):
            return False
        found = Digest()
        async for file in self.store.stream_files(table.id):
            found.add(LiveFile.of(file))
        if await self.store.get_table_by_id(table.id) != table:
            return False
        self._last = (table, stamp.digest)
        return found == stamp.digest


def _behind(seen: Seen, position: Position) -> str:
    if seen.stopped is not None and seen.stopped != _TO_BE_COMPARED:
        raise Failed(f"the Iceberg table is stopped: {seen.stopped}")
    at = "an unknown position" if seen.stamp.position is None else f"position {seen.stamp.position}"
    return (
        f"Iceberg is at {at} and does not contain what the registry had at {position}: is the Iceberg updater running? "
        "see `astha status`"
    )


def _created(row: TableSnapshot, pinned: Pinned) -> SnapshotDraft:
    snapshot = pinned.snapshot
    summary = {} if snapshot.summary is None else {"operation": snapshot.summary.operation.value, **_plain(snapshot)}
    return SnapshotDraft(
        snapshot_id=snapshot.snapshot_id,
        timestamp=snapshot.timestamp_ms,
        manifest_list=snapshot.manifest_list,
        summary=to_json_text(summary),
        schema_id=snapshot.schema_id,
        trigger=row.trigger,
        status="created",
        tag=pinned.tag,
        reason=row.reason,
    )


def _plain(snapshot: object) -> dict[str, str]:
    summary = getattr(snapshot, "summary", None)
    return {} if summary is None else dict(summary.additional_properties)


def _failed(row: TableSnapshot, reason: str) -> SnapshotDraft:
    return SnapshotDraft(timestamp=row.timestamp, trigger=row.trigger, status="failed", tag=row.tag, reason=reason)
