"""Which snapshots a commit expires, to keep metadata small: every commit rewrites all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from components.lib.lake.iceberg.manifest_lists import DroppedManifests

NOTHING_KNOWN: Mapping[int, DroppedManifests] = MappingProxyType({})


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


def unreferenced_files(
    io: FileIO,
    metadata: TableMetadata,
    expired: Sequence[Snapshot],
    dropped: Mapping[int, DroppedManifests] = NOTHING_KNOWN,
) -> list[str]:
    """Returns the manifest lists and manifests that only expired snapshots refer to.

    In a linear history a manifest that was dropped does not return. So if it is known what the successors of all
    expired snapshots have ``dropped``, nothing is read; otherwise the kept neighbours of expired snapshots are. After a
    rollback to an older snapshot all of them are.
    """
    history = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    linear = _is_linear(history)
    gone = {snapshot.snapshot_id for snapshot in expired}
    manifests = _known_unreferenced(history, gone, dropped) if linear else None
    if manifests is None:
        manifests = _read_unreferenced(io, history, gone, linear=linear)
    return [snapshot.manifest_list for snapshot in expired] + sorted(manifests)


def _known_unreferenced(
    history: Sequence[Snapshot], gone: set[int], dropped: Mapping[int, DroppedManifests]
) -> set[str] | None:
    """Returns None if something is not known. A manifest is in all snapshots from the one that added it, by its
    sequence number, to the one before its drop, so it is unreferenced if none of these is kept.
    """
    found: set[str] = set()
    last_kept = -1
    for snapshot, successor in zip(history, [*history[1:], None], strict=True):
        if snapshot.snapshot_id not in gone:
            last_kept = snapshot.sequence_number or 0
            continue
        known = None if successor is None else dropped.get(successor.snapshot_id)
        if known is None or known.parent != snapshot.snapshot_id:
            return None
        found.update(path for path, added in known.manifests if added > last_kept)
    return found


def _read_unreferenced(io: FileIO, history: Sequence[Snapshot], gone: set[int], *, linear: bool) -> set[str]:
    only_gone: set[str] = set()
    alive: set[str] = set()
    for place, snapshot in enumerate(history):
        beside_gone = any(near.snapshot_id in gone for near in history[max(0, place - 1) : place + 2])
        if beside_gone or not linear:
            manifests = {manifest.manifest_path for manifest in snapshot.manifests(io)}
            (only_gone if snapshot.snapshot_id in gone else alive).update(manifests)
    return only_gone - alive


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
