"""Finds the files that snapshots refer to, from their manifests: snapshots that an Iceberg table retains, and those in
the registry. A manifest that cannot be read may refer to any file, so it is an error: nothing may be deleted then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from components.lib.lake.iceberg import IcebergTables
from components.lib.lake.iceberg.errors import BrokenTable
from components.lib.lake.storage.table_places import own_files
from components.lib.lake.table_lookup import full_name
from registry.models import LakeTable, TableSnapshot


def unreferenced_metadata(table: Table, gone: Collection[int]) -> list[str]:
    """Returns manifest lists and manifests of this table that only the snapshots `gone` refer to.

    Reads all remaining snapshots: after another engine's rollback a manifest can reappear much later.
    """
    removed: set[str] = set()
    kept: set[str] = set()
    for snapshot, manifests in _manifests(table):
        paths = {manifest.manifest_path for manifest in manifests} | {snapshot.manifest_list}
        (removed if snapshot.snapshot_id in gone else kept).update(paths)
    return own_files(sorted(removed - kept), location=table.location())


def required(
    tables: IcebergTables, table: LakeTable, loaded: Table | None, rows: Iterable[TableSnapshot], paths: Collection[str]
) -> dict[str, int]:
    """Returns the paths that a snapshot needs, each with the newest such snapshot.

    Counts the snapshots that the Iceberg table `loaded` retains and those of `rows`, also if the Iceberg table has lost
    them. Raises `BrokenTable` if a manifest list or a manifest cannot be read.
    """
    name = full_name(table)
    found: dict[str, int] = {}
    retained: set[int] = set()
    if loaded is not None:
        retained = {snapshot.snapshot_id for snapshot in loaded.metadata.snapshots}
        try:
            found = referenced(loaded, paths)
        except Exception as error:  # a damaged manifest can raise anything
            raise BrokenTable(
                f"a manifest of {name} can't be read ({error!r}), so the needs of its snapshots are unknown: restore "
                "it, or expire the snapshots that have it"
            ) from error
    io = loaded.io if loaded is not None else load_file_io(tables.catalog.properties, table.location)
    for row in rows:
        if row.snapshot_id is None or row.snapshot_id in retained:
            continue
        try:
            found = {**dict.fromkeys(_needed_by(row, io, frozenset(paths)), row.snapshot_id), **found}
        except Exception as error:
            raise BrokenTable(
                f"snapshot {row.tag or row.snapshot_id} of {name} is in the registry and not in Iceberg, and its "
                f"manifests can't be read ({error!r}), so its needs are unknown: restore them, or give the snapshot "
                f"up with `astha snapshot expire {name} --tag {row.tag}`"
            ) from error
    return found


def _needed_by(row: TableSnapshot, io: FileIO, wanted: frozenset[str]) -> Iterator[str]:
    if row.manifest_list is None:
        raise FileNotFoundError("its row has no manifest list")
    for manifest in read_manifest_list(io.new_input(row.manifest_list)):
        yield from _live_paths(io, manifest, wanted)


def referenced(table: Table, paths: Collection[str]) -> dict[str, int]:
    """Returns the paths that a retained snapshot needs, each with the newest such snapshot.

    Manifests are immutable, so each is read once, however many snapshots share it.
    """
    wanted = frozenset(paths)
    known: dict[str, frozenset[str]] = {}
    found: dict[str, int] = {}
    for snapshot, manifests in _manifests(table):
        for manifest in manifests:
            held = known.get(manifest.manifest_path)
            if held is None:
                held = known[manifest.manifest_path] = _live_paths(table.io, manifest, wanted)
            found.update((path, snapshot.snapshot_id) for path in held)
    return found


def _manifests(table: Table) -> Iterator[tuple[Snapshot, list[ManifestFile]]]:
    for snapshot in sorted(table.metadata.snapshots, key=lambda known: known.sequence_number or 0):
        yield snapshot, snapshot.manifests(table.io)


def _live_paths(io: FileIO, manifest: ManifestFile, wanted: frozenset[str]) -> frozenset[str]:
    """Counts delete files like data files, and ignores entries of removed files."""
    entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
    return frozenset(entry.data_file.file_path for entry in entries) & wanted
