"""Fulfils snapshot requests: waits until Iceberg contains what was committed before the request, then tags."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, TypeVar

import msgspec
import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import CatalogUnavailable, IcebergTables, Stamp, TableProblem
from components.lib.lake.table_lookup import full_name
from components.lib.ledger_entry import ledger_entry
from components.snapshotter.tags import TaggedSnapshot, TagState, read_tag_state, release, tag_current
from registry.contract import MetadataStore
from registry.errors import AlreadyExists, NotFound, Unavailable
from registry.inputs import SnapshotDraft
from registry.json_text import to_json_text
from registry.models import LakeTable, TableSnapshot
from registry.position import Position

log = structlog.get_logger(__name__)

T = TypeVar("T")

_BACKOFF = Backoff(initial_s=0.05, max_s=2.0)
_VISIBLE_AFTER_S = 5.0
"""PostgreSQL sends a commit before other sessions can see it: only after this time is a missing row a deleted one."""

_MANY_REQUESTS = 64
"""Open requests above which each one is checked less often, in proportion."""

_TO_BE_COMPARED = "to be compared with the registry"
"""The updater's stop reason for a table that only waits for its refresh."""


class BlockingCall(Protocol):
    """Runs blocking work away from the event loop."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


class RequestFailed(Exception):
    """The request cannot be fulfilled. The message becomes the reason in its row."""


class RequestLimiter:
    """`async with` around each step of a request; limits the steps in flight, not the open requests."""

    def __init__(self, max_steps: int) -> None:
        self._steps = asyncio.Semaphore(max_steps)
        self.open_requests = 0

    def wait_s(self, backoff_s: float) -> float:
        """Returns the wait between two checks of one request: longer if many are open."""
        return backoff_s * max(1.0, self.open_requests / _MANY_REQUESTS)

    async def __aenter__(self) -> None:
        await self._steps.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._steps.release()


class SnapshotRequests:
    """Every step can be repeated after a crash: the row holds what is to be done, the tag what has been done."""

    def __init__(
        self,
        store: MetadataStore,
        tables: IcebergTables,
        call: BlockingCall,
        clock: LoopClock,
        timeout_s: float,
        limiter: RequestLimiter,
        *,
        updater: str = "iceberg_updater",
    ) -> None:
        self._store = store
        self._tables = tables
        self._call = call
        self._clock = clock
        self._timeout_s = timeout_s
        self._limiter = limiter
        self._updater = updater

    async def fulfil(self, row: TableSnapshot, position: Position) -> TableSnapshot | None:
        """Returns the row with its result, once the registry has it; None if the request is no longer open.

        `position`: the registry's position at the time of the request, or later.
        """
        try:
            tagged = await self._tag(row, position)
            if tagged is None:
                return None
            return await self._retry(lambda: self._store.update_snapshot(row.id, _created(row, tagged)))
        except RequestFailed as failed:
            reason = str(failed)
        except AlreadyExists as error:  # another row has the same tag: it can only be for this one
            await self._release(row)
            reason = str(error)
        except NotFound:
            return None
        except Exception as error:
            log.exception("snapshot request failed unexpectedly", table_id=row.table_id, request=row.id)
            reason = f"unexpected error: {error!r}"
        log.warning("snapshot failed", table_id=row.table_id, request=row.id, tag=row.tag, reason=reason)
        try:
            return await self._retry(lambda: self._store.update_snapshot(row.id, _failed(row, reason)))
        except NotFound:
            return None

    async def _tag(self, row: TableSnapshot, position: Position) -> TaggedSnapshot | None:
        """The timeout counts from the first check: while many are due, a request may wait for the limiter."""
        began, checks, behind = math.inf, 0, "not checked yet"
        comparison = RegistryComparison(self._store)
        while True:
            try:
                async with self._limiter:
                    began = min(began, self._clock.monotonic())
                    table = await self._store.get_table_by_id(row.table_id)
                    is_open = None if table is None else await self._is_open(row)
                    if is_open is False or (is_open is None and self._clock.monotonic() >= began + _VISIBLE_AFTER_S):
                        return None
                    if table is not None and is_open:
                        await self._require_iceberg(table)
                        found = await self._attempt(table, row, position, comparison)
                        if isinstance(found, TaggedSnapshot):
                            return found
                        behind = found
            except (CatalogUnavailable, Unavailable) as trouble:
                behind = str(trouble)
            except TableProblem as problem:
                raise RequestFailed(str(problem)) from problem
            if self._clock.monotonic() >= began + self._timeout_s:
                raise RequestFailed(f"given up after {self._timeout_s:.0f} s: {behind}")
            checks += 1
            await self._clock.sleep(self._limiter.wait_s(_BACKOFF.wait_s(checks, self._clock)))

    async def _attempt(
        self, table: LakeTable, row: TableSnapshot, position: Position, comparison: RegistryComparison
    ) -> TaggedSnapshot | str:
        """Returns why the request still has to wait, if it has."""
        state = await self._call(lambda: read_tag_state(self._tables, table, row))
        if state is None:
            return "its Iceberg table has not been created yet: is the Iceberg updater running? see `astha status`"
        if state.tagged is not None:
            return state.tagged
        if await covers(self._store, self._updater, state.stamp, position) or await comparison.equal(
            table, state.stamp
        ):
            return await self._call(lambda: tag_current(self._tables, table, row))
        return _behind(state, position)

    async def _is_open(self, row: TableSnapshot) -> bool | None:
        """Whether the request still waits: a redelivered event may be out of date. None: no such row."""
        found = await self._store.list_snapshots(row.table_id, after=row.id - 1, limit=1)
        return found[0].status == "requested" if found and found[0].id == row.id else None

    async def _require_iceberg(self, table: LakeTable) -> None:
        metadata = await self._store.get_table_metadata(table.id)
        if metadata is not None and metadata.format != "parquet":
            raise RequestFailed(f"{full_name(table)} holds {metadata.format}: only Parquet tables are in Iceberg")

    async def _release(self, row: TableSnapshot) -> None:
        table = await self._retry(lambda: self._store.get_table_by_id(row.table_id))
        if table is not None:
            await self._retry(lambda: self._call(lambda: release(self._tables, table, [row.id])))

    async def _retry(self, step: Callable[[], Awaitable[T]]) -> T:
        """Retries without limit: the registry must learn what was done in Iceberg."""

        def log_retry(error: BaseException, _: int, wait_s: float) -> None:
            log.warning("request step will be retried", error=str(error), wait_s=round(wait_s, 3))

        retrying = _BACKOFF.retrying(
            self._clock,
            retry_on=lambda error: isinstance(error, (Unavailable, CatalogUnavailable)),
            on_retry=log_retry,
        )
        async for attempt in retrying:
            with attempt:
                async with self._limiter:
                    return await step()
        raise AssertionError("retries end with a result or an error")


async def covers(store: MetadataStore, updater: str, stamp: Stamp, position: Position) -> bool:
    """Whether the stamp proves that Iceberg contains everything that the registry had at `position`.

    Positions are comparable within one change stream only: while the updater has no ledger entry or owes a refresh
    (after `astha registry copy` or a restore), the stamp may be from another stream.
    """
    if not stamp.covers(position):
        return False
    entry = await ledger_entry(store, updater)
    return entry is not None and not entry.refresh_owed


class RegistryComparison(msgspec.Struct):
    """Compares the registry's files with a stamp: the stamp of a table without recent changes has an old position."""

    store: MetadataStore
    _last: tuple[LakeTable, Digest] | None = None

    async def equal(self, table: LakeTable, stamp: Stamp) -> bool:
        """Whether the registry has the files of the stamp now. Reads them only if the counts agree.

        Every change of files also changes the table's row: if that is the same before and after, no change came
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


def _behind(state: TagState, position: Position) -> str:
    if state.stopped is not None and state.stopped != _TO_BE_COMPARED:
        raise RequestFailed(f"the Iceberg table is stopped: {state.stopped}")
    at = "an unknown position" if state.stamp.position is None else f"position {state.stamp.position}"
    return (
        f"Iceberg is at {at} and does not contain what the registry had at {position}: is the Iceberg updater running? "
        "see `astha status`"
    )


def _created(row: TableSnapshot, tagged: TaggedSnapshot) -> SnapshotDraft:
    snapshot = tagged.snapshot
    summary = {} if snapshot.summary is None else {"operation": snapshot.summary.operation.value, **_plain(snapshot)}
    return SnapshotDraft(
        snapshot_id=snapshot.snapshot_id,
        timestamp=snapshot.timestamp_ms,
        manifest_list=snapshot.manifest_list,
        summary=to_json_text(summary),
        schema_id=snapshot.schema_id,
        trigger=row.trigger,
        status="created",
        tag=tagged.tag,
        reason=row.reason,
    )


def _plain(snapshot: object) -> dict[str, str]:
    summary = getattr(snapshot, "summary", None)
    return {} if summary is None else dict(summary.additional_properties)


def _failed(row: TableSnapshot, reason: str) -> SnapshotDraft:
    return SnapshotDraft(timestamp=row.timestamp, trigger=row.trigger, status="failed", tag=row.tag, reason=reason)
