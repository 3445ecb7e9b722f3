"""Copies a registry from any backend to any backend, as one consistent snapshot.

Everything is read in one snapshot of the source, which does not block its writers, and written in one transaction of
the target, so that any failure, a killed process included, leaves the target empty. The rows of the Iceberg catalog and
the lake's identity are copied: the new registry owns the same Iceberg tables, with their history. The ledger, the
daemons with their leases and the identity of the change stream are not: they describe the source's own stream. The
daemon of the new registry finds no ledger and starts with a refresh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from registry.contract import BulkLoad, ConsistentRead, MetadataStore
from registry.errors import Conflict
from registry.models import (
    LAKE_IDENTITY,
    PUBLISHED,
    CatalogNamespace,
    CatalogRequest,
    CatalogTable,
    Compaction,
    FileAwaitingDeletion,
    GroupLease,
    LakeLocation,
    ProducerSequence,
    Row,
    SegmentObject,
    SourceIdentity,
    TableInsert,
    UploadIntent,
)

__all__ = ["COPIED", "CopyProgress", "copy_registry"]

COPIED: tuple[type[Row], ...] = (
    *PUBLISHED, UploadIntent, FileAwaitingDeletion, Compaction, SegmentObject, ProducerSequence, GroupLease,
    CatalogTable, CatalogNamespace, CatalogRequest, LakeLocation, TableInsert,
)  # fmt: skip
"""Tables that are copied completely, parents before children. Of `source_identity` only the lake's row is copied."""

CopyProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with a table, the rows copied so far and the total: first with 0, then after every page."""

_PAGE = 5_000


def _silent(_table: str, _done: int, _total: int) -> None:
    pass


async def copy_registry(
    source: MetadataStore, target: MetadataStore, progress: CopyProgress = _silent, *, page: int = _PAGE
) -> dict[str, int]:
    """Fills the empty ``target`` with a consistent snapshot of ``source``. Returns the number of rows per table.

    Ids, times and JSON are copied unchanged, and the target's next ids are above them. Row counts are compared in the
    target's transaction before it commits. Raises Conflict if the target is not empty or if counts differ. Memory is
    bounded by ``page``. An error, also of ``progress``, or a cancellation leaves the target empty.
    """
    async with source.consistent_read() as snapshot, target.load() as load:
        copied = {kind.table: await _copy_table(kind, snapshot, load, progress, page) for kind in COPIED}
        await _require_equal(copied, snapshot, load)
        identity = await _copy_lake_identity(snapshot, load, progress)
    return {**copied, SourceIdentity.table: identity}


async def _copy_table(
    kind: type[Row], snapshot: ConsistentRead, load: BulkLoad, progress: CopyProgress, page: int
) -> int:
    total, done = await snapshot.count(kind), 0
    progress(kind.table, done, total)
    async for rows in snapshot.rows(kind, page=page):
        await load.add(rows)
        done += len(rows)
        progress(kind.table, done, total)
    return done


async def _copy_lake_identity(snapshot: ConsistentRead, load: BulkLoad, progress: CopyProgress) -> int:
    """Without it the new registry would regard its own Iceberg tables as those of another registry."""
    rows = [row async for page in snapshot.rows(SourceIdentity) for row in page if row.name == LAKE_IDENTITY]
    progress(SourceIdentity.table, 0, len(rows))
    await load.add(rows)
    arrived = await load.count(SourceIdentity)
    if arrived != len(rows):
        raise Conflict(
            f"{SourceIdentity.table}: {len(rows)} rows of the lake were read and {arrived} arrived: nothing was kept",
            [SourceIdentity.table],
        )
    progress(SourceIdentity.table, arrived, len(rows))
    return arrived


async def _require_equal(copied: dict[str, int], snapshot: ConsistentRead, load: BulkLoad) -> None:
    """Raises Conflict unless source, copied and target row counts are equal."""
    for kind in COPIED:
        total, arrived = await snapshot.count(kind), await load.count(kind)
        if not total == copied[kind.table] == arrived:
            raise Conflict(
                f"{kind.table} has {total} rows in the source, {copied[kind.table]} were read and {arrived} arrived: "
                "nothing was kept",
                [kind.table],
            )
