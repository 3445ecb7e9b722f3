"""What snapshots refer to, read from their manifests: those that an Iceberg table retains, and those that the registry
names. What can't be read may refer to anything: it is an error, and whoever wants to delete something must not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from components.lib.lake.iceberg import IcebergTables
from components.lib.lake.iceberg.errors import BrokenTable
from components.lib.lake.table_lookup import full_name
from registry.models import LakeTable, TableSnapshot


def unreferenced_metadata(table: Table, gone: Collection[int]) -> list[str]:
    """Manifest lists and manifests of the snapshots `gone` that no other snapshot has.

    All that stay are looked at: after another engine's rollback a manifest can come back long after it went.
    """
    doomed: set[str] = set()
    kept: set[str] = set()
    for snapshot, manifests in _manifests(table):
        paths = {manifest.manifest_path for manifest in manifests} | {snapshot.manifest_list}
        (doomed if snapshot.snapshot_id in gone else kept).update(paths)
    return sorted(doomed - kept)


def required(
    tables: IcebergTables, table: LakeTable, loaded: Table | None, rows: Iterable[TableSnapshot], paths: Collection[str]
) -> dict[str, int]:
    """Of the paths, those that a snapshot needs, and the newest one that does: snapshots that the Iceberg table
    ``loaded`` retains, and those of ``rows``, also where the Iceberg table has lost them.

    BrokenTable, with the way out, if a manifest list or a manifest can't be read.
    """
    name = full_name(table)
    found: dict[str, int] = {}
    retained: set[int] = set()
    if loaded is not None:
        retained = {snapshot.snapshot_id for snapshot in loaded.metadata.snapshots}
        try:
            found = referenced(loaded, paths)
        except Exception as error:  # whatever a missing or damaged manifest makes of its reader
            raise BrokenTable(
                f"a manifest of {name} can't be read ({error!r}), so nobody knows what its snapshots need: restore it, "
                "or expire the snapshots that have it"
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
                f"manifests can't be read ({error!r}), so nobody knows what it needs: restore them, or give the "
                f"snapshot up with `astha snapshot expire {name} --tag {row.tag}`"
            ) from error
    return found


def _needed_by(row: TableSnapshot, io: FileIO, wanted: frozenset[str]) -> Iterator[str]:
    if row.manifest_list is None:
        raise FileNotFoundError("the registry does not say where its manifest list is")
    for manifest in read_manifest_list(io.new_input(row.manifest_list)):
        yield from _held(io, manifest, wanted)


def referenced(table: Table, paths: Collection[str]) -> dict[str, int]:
    """Of the paths, those that a retained snapshot needs, and the newest one that does.

    Manifests don't change: each is read once, however many snapshots share it.
    """
    wanted = frozenset(paths)
    known: dict[str, frozenset[str]] = {}
    found: dict[str, int] = {}
    for snapshot, manifests in _manifests(table):
        for manifest in manifests:
            held = known.get(manifest.manifest_path)
            if held is None:
                held = known[manifest.manifest_path] = _held(table.io, manifest, wanted)
            found.update((path, snapshot.snapshot_id) for path in held)
    return found


def _manifests(table: Table) -> Iterator[tuple[Snapshot, list[ManifestFile]]]:
    for snapshot in sorted(table.metadata.snapshots, key=lambda known: known.sequence_number or 0):
        yield snapshot, snapshot.manifests(table.io)


def _held(io: FileIO, manifest: ManifestFile, wanted: frozenset[str]) -> frozenset[str]:
    """Delete files count as data does; entries that say that a file went don't."""
    entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
    return frozenset(entry.data_file.file_path for entry in entries) & wanted
