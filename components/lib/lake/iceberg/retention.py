"""Which snapshots a commit expires, to keep metadata small: every commit rewrites all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot


class Retention(msgspec.Struct, frozen=True):
    """`max_snapshots` are kept in addition to those that tags and branches refer to.

    A table's own `history.expire.min-snapshots-to-keep` can keep more, its `history.expire.max-snapshot-age-ms` fewer.
    """

    max_snapshots: int = 100
    by_age: Callable[[], bool] | None = None
    """Whether the clock can be trusted now; None if it always is. If not, snapshots expire by number only."""

    def expired(self, metadata: TableMetadata, now_ms: int) -> list[Snapshot]:
        """Returns the snapshots to expire, oldest first. By number in batches of a tenth: expiration has a cost."""
        properties = metadata.properties
        least = int(
            properties.get(TableProperties.MIN_SNAPSHOTS_TO_KEEP, TableProperties.MIN_SNAPSHOTS_TO_KEEP_DEFAULT)
        )
        age_ms = properties.get(TableProperties.MAX_SNAPSHOT_AGE_MS)
        kept = _named(metadata)
        free = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in kept]
        free.sort(key=lambda snapshot: (snapshot.sequence_number or 0, snapshot.timestamp_ms))
        most = max(self.max_snapshots, least)
        surplus = len(free) + 1 - most  # and the current one
        if surplus < max(1, most // 10):
            surplus = 0
        if age_ms is not None and (self.by_age is None or self.by_age()):
            old = sum(snapshot.timestamp_ms < now_ms - int(age_ms) for snapshot in free)
            surplus = max(surplus, min(old, len(free) + 1 - least))
        return free[: max(0, surplus)]


def unreferenced_files(io: FileIO, metadata: TableMetadata, expired: Sequence[Snapshot]) -> list[str]:
    """Returns the manifest lists and manifests that only expired snapshots refer to.

    In a linear history a manifest that was dropped does not return, so only the kept neighbours of expired snapshots
    are read. After a rollback to an older snapshot all of them are.
    """
    gone = {snapshot.snapshot_id for snapshot in expired}
    history = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    linear = _is_linear(history)
    dropped: set[str] = set()
    alive: set[str] = set()
    for place, snapshot in enumerate(history):
        beside_gone = any(near.snapshot_id in gone for near in history[max(0, place - 1) : place + 2])
        if beside_gone or not linear:
            manifests = {manifest.manifest_path for manifest in snapshot.manifests(io)}
            (dropped if snapshot.snapshot_id in gone else alive).update(manifests)
    return [snapshot.manifest_list for snapshot in expired] + sorted(dropped - alive)


def _is_linear(history: Sequence[Snapshot]) -> bool:
    known = {snapshot.snapshot_id for snapshot in history}
    return all(
        later.parent_snapshot_id == earlier.snapshot_id or later.parent_snapshot_id not in known
        for earlier, later in pairwise(history)
    )


def _named(metadata: TableMetadata) -> set[int]:
    """Returns the heads of all branches and tags, and the ancestors of every branch except main."""
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    kept = {ref.snapshot_id for ref in metadata.refs.values()}
    for name, ref in metadata.refs.items():
        if name != MAIN_BRANCH and ref.snapshot_ref_type == "branch":
            ancestor: int | None = ref.snapshot_id
            while ancestor is not None and ancestor in parents:
                kept.add(ancestor)
                ancestor = parents[ancestor]
    if metadata.current_snapshot_id is not None:
        kept.add(metadata.current_snapshot_id)
    return kept
