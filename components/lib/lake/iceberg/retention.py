"""Which snapshots a commit expires, so that metadata stays small: every commit writes all of it anew."""

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
    """`max_snapshots`: kept beside those that tags and branches name.

    A table's own `history.expire.min-snapshots-to-keep` can ask for more, its `history.expire.max-snapshot-age-ms` for
    fewer.
    """

    max_snapshots: int = 100
    by_age: Callable[[], bool] | None = None
    """Whether the clock can be trusted now; None if it always is. While not, only the number counts."""

    def expired(self, metadata: TableMetadata, now_ms: int) -> list[Snapshot]:
        """Oldest first. Ten at a time where it is by number: expiring has its price too."""
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
    """Manifest lists and manifests that only the expired snapshots refer to.

    Where each snapshot came from the one before it, a manifest that was left out does not come back: what the
    neighbours among those that stay do not have, nobody has. Where somebody went back to an older one, all are asked.
    """
    gone = {snapshot.snapshot_id for snapshot in expired}
    history = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    straight = _is_straight(history)
    doomed: set[str] = set()
    alive: set[str] = set()
    for place, snapshot in enumerate(history):
        beside_gone = any(near.snapshot_id in gone for near in history[max(0, place - 1) : place + 2])
        if beside_gone or not straight:
            manifests = {manifest.manifest_path for manifest in snapshot.manifests(io)}
            (doomed if snapshot.snapshot_id in gone else alive).update(manifests)
    return [snapshot.manifest_list for snapshot in expired] + sorted(doomed - alive)


def _is_straight(history: Sequence[Snapshot]) -> bool:
    known = {snapshot.snapshot_id for snapshot in history}
    return all(
        later.parent_snapshot_id == earlier.snapshot_id or later.parent_snapshot_id not in known
        for earlier, later in pairwise(history)
    )


def _named(metadata: TableMetadata) -> set[int]:
    """The heads of all branches and tags, and everything that a branch other than main came from."""
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
