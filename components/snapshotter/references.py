"""What the snapshots that an Iceberg table retains refer to, read from their manifests."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot


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
                held = known[manifest.manifest_path] = _held(table, manifest, wanted)
            found.update((path, snapshot.snapshot_id) for path in held)
    return found


def _manifests(table: Table) -> Iterator[tuple[Snapshot, list[ManifestFile]]]:
    for snapshot in sorted(table.metadata.snapshots, key=lambda known: known.sequence_number or 0):
        yield snapshot, snapshot.manifests(table.io)


def _held(table: Table, manifest: ManifestFile, wanted: frozenset[str]) -> frozenset[str]:
    """Delete files count as data does; entries that say that a file went don't."""
    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    return frozenset(entry.data_file.file_path for entry in entries) & wanted
