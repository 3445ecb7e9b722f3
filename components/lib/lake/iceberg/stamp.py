"""The stamp: registry position and digest of the live files, recorded atomically with each commit (decision 0010).

The table's properties are authoritative; a snapshot's summary has a copy.
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
"""Prefix of properties for tags of the snapshotter; the value is the row's id and the snapshot's."""


class Stamp(msgspec.Struct, frozen=True):
    """`snapshot` is None if the table never had one, `position` None after a refresh."""

    digest: Digest
    snapshot: int | None = None
    position: Position | None = None

    @classmethod
    def read(cls, metadata: TableMetadata) -> Stamp:
        """Returns the stamp of an empty table if there is none."""
        return cls.parse(metadata.properties)

    @classmethod
    def parse(cls, found: Mapping[str, str]) -> Stamp:
        """Reads the stamp in a table's properties."""
        if DIGEST not in found:
            return cls(Digest())
        snapshot, position = found.get(SNAPSHOT), found.get(POSITION)
        return cls(
            Digest.parse(found[DIGEST], int(found[FILES])),
            None if snapshot is None else int(snapshot),
            None if position is None else Position(int(position)),
        )

    def covers(self, position: Position) -> bool:
        """Returns whether the table contains the transaction at this position."""
        return self.position is not None and position <= self.position

    def summary(self) -> dict[str, str]:
        values = {DIGEST: str(self.digest), FILES: str(self.digest.files)}
        return values if self.position is None else {**values, POSITION: str(self.position)}

    def properties(self) -> dict[str, str]:
        values = self.summary()
        return values if self.snapshot is None else {**values, SNAPSHOT: str(self.snapshot)}


def stamped_table_id(properties: Mapping[str, str], identity: str) -> int | None:
    """Returns the id of the registry's table, if the stamp is that of the registry with this identity."""
    found = properties.get(TABLE_ID, "")
    return int(found) if properties.get(REGISTRY) == identity and found.isdecimal() else None
