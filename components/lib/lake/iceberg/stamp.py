"""What a commit says of itself, atomically with the commit: where the registry was, and which files are live.

See docs/decisions/0010-the-lake.md. The table's properties are what counts; a snapshot's summary has a copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from pyiceberg.table.metadata import TableMetadata

from components.lib.lake.file_set_digest import Digest
from registry.position import Position

TABLE_ID = "astha.table-id"
REGISTRY = "astha.registry"
SCHEMA_VERSION = "astha.schema-version"
SCHEMA_ID = "astha.schema-id"
STOPPED = "astha.stopped"
POSITION = "astha.position"
DIGEST = "astha.digest"
FILES = "astha.files"
SNAPSHOT = "astha.snapshot"
TAG = "astha.tag."
"""Before the name of a tag that the snapshotter has set: the property's value is the row's id and the snapshot's."""


class Stamp(msgspec.Struct, frozen=True):
    """`snapshot` is None for a table that never had one, `position` None after a refresh."""

    digest: Digest
    snapshot: int | None = None
    position: Position | None = None

    @classmethod
    def read(cls, metadata: TableMetadata) -> Stamp:
        """An unstamped table's is that of no files."""
        found: Mapping[str, str] = metadata.properties
        if DIGEST not in found:
            return cls(Digest())
        snapshot, position = found.get(SNAPSHOT), found.get(POSITION)
        return cls(
            Digest.parse(found[DIGEST], int(found[FILES])),
            None if snapshot is None else int(snapshot),
            None if position is None else Position(int(position)),
        )

    def covers(self, position: Position) -> bool:
        """Whether the transaction at this position is in already."""
        return self.position is not None and position <= self.position

    def summary(self) -> dict[str, str]:
        told = {DIGEST: str(self.digest), FILES: str(self.digest.files)}
        return told if self.position is None else {**told, POSITION: str(self.position)}

    def properties(self) -> dict[str, str]:
        told = self.summary()
        return told if self.snapshot is None else {**told, SNAPSHOT: str(self.snapshot)}
