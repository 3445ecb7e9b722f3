"""Tags of the snapshotter: rows of `table_snapshots` name them, so an engine's commit must not take them away."""

from __future__ import annotations

from collections.abc import Iterator

from components.lib.lake.engine_commits.errors import InvalidCommit
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata
from components.lib.lake.iceberg.stamp import TAG


def require_kept_tags(before: IcebergMetadata, after: IcebergMetadata) -> None:
    """Raises `InvalidCommit` if the commit removes or moves a tag of the snapshotter, or removes its snapshot."""
    for name, snapshot_id in _own_tags(before):
        found = after.refs.get(name)
        if found is None or found.type != "tag" or found.snapshot_id != snapshot_id:
            raise InvalidCommit(
                f"the tag {name} is a snapshot that Astha keeps: remove it with `astha snapshot expire`"
            )


def _own_tags(metadata: IcebergMetadata) -> Iterator[tuple[str, int]]:
    """Yields name and snapshot id, without tags that another tool has moved: those are its own."""
    for key, value in metadata.properties.items():
        _, _, number = value.partition(" ")
        if key.startswith(TAG) and number.isdecimal():
            name = key.removeprefix(TAG)
            ref = metadata.refs.get(name)
            if ref is not None and ref.snapshot_id == int(number):
                yield name, int(number)
