"""The snapshotter's Iceberg tags: set, retired and released, each in one commit. Blocking.

A table property written in the same commit records the owner of a tag: ``astha.tag.<name>`` = ``<row id> <snapshot
id>``. So a tag that was set before a crash is found again, and a tag that another tool set or moved is never touched.

A snapshot ends in two steps. `retire` frees its name and holds it by a tag ``astha-expiring-<row id>``, so that readers
can finish. `release` removes that tag and the Iceberg snapshot, unless it is the current one, another ref names it, or
it is part of the history that the updater keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemovePropertiesUpdate, RemoveSnapshotsUpdate

from components.lib.lake.iceberg import IcebergTables, Stamp, TableCommit, TableProblem
from components.lib.lake.iceberg.stamp import STOPPED, TAG
from components.snapshotter.reachability import unreferenced_metadata
from registry.models import LakeTable, TableSnapshot

PROPERTY = TAG


class CantTag(TableProblem):
    pass


class OwnTag(msgspec.Struct, frozen=True):
    name: str
    row_id: int
    snapshot_id: int


class TaggedSnapshot(msgspec.Struct, frozen=True):
    """A tag and the Iceberg snapshot that it names."""

    tag: str
    snapshot: Snapshot


class TagState(msgspec.Struct, frozen=True):
    """What a request needs to know about the Iceberg table."""

    stamp: Stamp
    tagged: TaggedSnapshot | None  # by an earlier attempt for the same row
    stopped: str | None


def tag_of(row: TableSnapshot) -> str:
    """Returns the requested tag, or a generated one."""
    return row.tag or f"snapshot-{row.id}"


def expiring_tag(row_id: int) -> str:
    return f"astha-expiring-{row_id}"


def own_tags(metadata: TableMetadata) -> dict[int, OwnTag]:
    """Returns the snapshotter's tags by row id, without those that another tool moved."""
    found: dict[int, OwnTag] = {}
    for name, value in metadata.properties.items():
        if not name.startswith(PROPERTY):
            continue
        row_id, snapshot_id = map(int, value.split())
        ref = metadata.refs.get(name.removeprefix(PROPERTY))
        if ref is not None and ref.snapshot_id == snapshot_id:
            found[row_id] = OwnTag(name.removeprefix(PROPERTY), row_id, snapshot_id)
    return found


def read_tag_state(tables: IcebergTables, table: LakeTable, row: TableSnapshot) -> TagState | None:
    """Returns None if there is no Iceberg table. Raises `TableProblem` after an external commit."""
    loaded = tables.load(table)
    if loaded is None:
        return None
    metadata = loaded.metadata
    tagged = _tagged(metadata, row)
    if tagged is None:
        TableCommit(loaded).require_own()
    return TagState(Stamp.read(metadata), tagged, metadata.properties.get(STOPPED))


def tag_current(tables: IcebergTables, table: LakeTable, row: TableSnapshot) -> TaggedSnapshot:
    """Tags the current snapshot, unless the row has its tag already. Raises `CantTag` if the name is taken."""
    name = tag_of(row)
    done: list[TaggedSnapshot] = []

    def build(draft: TableCommit) -> None:
        metadata = draft.table.metadata
        before = _tagged(metadata, row)
        current = metadata.current_snapshot()
        if before is not None:
            done.append(before)
            return
        draft.require_own()
        if current is None:
            raise CantTag("the table has no Iceberg snapshot yet: insert data first")
        _require_free(metadata, name)
        draft.set_tag(name, current.snapshot_id)
        draft.set_properties({PROPERTY + name: f"{row.id} {current.snapshot_id}"})
        done.append(TaggedSnapshot(name, current))

    tables.commit(table, build)
    return done[-1]


def retire(tables: IcebergTables, table: LakeTable, rows: Sequence[TableSnapshot]) -> None:
    """Frees the rows' tag names. Their snapshots stay until they are released. Idempotent."""

    def build(draft: TableCommit) -> None:
        known = own_tags(draft.table.metadata)
        for row in rows:
            tag = known.get(row.id)
            if tag is None or tag.name == expiring_tag(row.id):
                continue
            _drop(draft, tag)
            draft.set_tag(expiring_tag(row.id), tag.snapshot_id)
            draft.set_properties({PROPERTY + expiring_tag(row.id): f"{row.id} {tag.snapshot_id}"})

    _commit_if_exists(tables, table, build)


def release(tables: IcebergTables, table: LakeTable, row_ids: Iterable[int]) -> list[str]:
    """Removes the tags of these rows and the snapshots that only they held. Returns unreferenced metadata files."""
    wanted = set(row_ids)
    unreferenced: list[str] = []

    def build(draft: TableCommit) -> None:
        unreferenced.clear()
        metadata = draft.table.metadata
        going = [tag for row_id, tag in own_tags(metadata).items() if row_id in wanted]
        for tag in going:
            _drop(draft, tag)
        gone = expirable(metadata, {tag.name for tag in going})
        if gone:
            unreferenced.extend(unreferenced_metadata(draft.table, gone))
            draft.updates.append(RemoveSnapshotsUpdate(snapshot_ids=sorted(gone)))

    return unreferenced if _commit_if_exists(tables, table, build) else []


def expirable(metadata: TableMetadata, tags: set[str]) -> set[int]:
    """Returns the snapshots of these tags that can be removed with them.

    The history that the updater keeps must have no gap: streaming readers follow it.
    """
    named = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in tags}
    named |= _ancestors(metadata, [ref.snapshot_id for name, ref in metadata.refs.items() if _is_branch(name, ref)])
    named.add(metadata.current_snapshot_id or 0)
    wanted = {metadata.refs[name].snapshot_id for name in tags}
    by_age = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    gone: set[int] = set()
    for snapshot in by_age:
        if snapshot.snapshot_id in wanted and snapshot.snapshot_id not in named:
            gone.add(snapshot.snapshot_id)
        elif snapshot.snapshot_id not in named:
            break  # the updater's history begins here
    return gone


def _is_branch(name: str, ref: object) -> bool:
    return name != MAIN_BRANCH and getattr(ref, "snapshot_ref_type", None) == "branch"


def _ancestors(metadata: TableMetadata, heads: Iterable[int]) -> set[int]:
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    found: set[int] = set()
    for head in heads:
        at: int | None = head
        while at is not None and at in parents and at not in found:
            found.add(at)
            at = parents[at]
    return found


def _tagged(metadata: TableMetadata, row: TableSnapshot) -> TaggedSnapshot | None:
    tag = own_tags(metadata).get(row.id)
    snapshot = None if tag is None else metadata.snapshot_by_id(tag.snapshot_id)
    return None if tag is None or snapshot is None else TaggedSnapshot(tag.name, snapshot)


def _require_free(metadata: TableMetadata, name: str) -> None:
    if name == MAIN_BRANCH:
        raise CantTag(f"{name!r} is the table's main branch: choose another tag")
    ref = metadata.refs.get(name)
    if ref is not None:
        raise CantTag(
            f"Iceberg has a {ref.snapshot_ref_type} {name!r} already, of snapshot {ref.snapshot_id}, which Astha did "
            "not set: choose another tag"
        )


def _drop(draft: TableCommit, tag: OwnTag) -> None:
    draft.remove_tag(tag.name)
    draft.updates.append(RemovePropertiesUpdate(removals=[PROPERTY + tag.name]))


def _commit_if_exists(tables: IcebergTables, table: LakeTable, build: Callable[[TableCommit], None]) -> bool:
    """Returns False if the Iceberg table no longer exists."""
    if tables.load(table) is None:
        return False
    tables.commit(table, build)
    return True
