"""Iceberg metadata that names files of another table, as a client could have written it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from pyiceberg.table import Table

SNAPSHOT = 77
"""The snapshot of another table that the forged metadata has."""


def forged_metadata(victim: Table, forger: Table) -> bytes:
    """Returns the metadata of `forger` with the first snapshot and the metadata file of `victim`."""
    forged: dict[str, Any] = msgspec.json.decode(local(forger.metadata_location).read_bytes())
    theirs = msgspec.json.decode(local(victim.metadata_location).read_bytes())["snapshots"][0]
    own = forged["snapshots"][0]
    old = {"snapshot-id": SNAPSHOT, "sequence-number": 0, "timestamp-ms": own["timestamp-ms"]}
    forged["snapshots"].insert(0, {**theirs, **old})
    forged["metadata-log"].append({"timestamp-ms": own["timestamp-ms"], "metadata-file": victim.metadata_location})
    return msgspec.json.encode(forged)


def local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def named_files(table: Table) -> set[str]:
    """Returns all files of the table's metadata that can be deleted with it."""
    found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.metadata.snapshots:
        found |= {snapshot.manifest_list, *(manifest.manifest_path for manifest in snapshot.manifests(table.io))}
    return found
