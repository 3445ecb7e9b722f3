"""What verify has found, for people and for machines."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """Of a difference."""

    NOT_COMMITTED = "registered, but not in Iceberg"
    NOT_REGISTERED = "in Iceberg, but not registered"
    TWICE = "twice in Iceberg"
    DESCRIBED_DIFFERENTLY = "described differently in Iceberg"
    NO_ICEBERG_TABLE = "no Iceberg table"
    NO_REGISTRY_TABLE = "an Iceberg table that the registry has not"
    SCHEMA = "schema"
    FOREIGN_COMMIT = "a commit by another engine"
    STOPPED = "stopped"
    UNREADABLE = "can't be read"
    NO_ANSWER = "its storage does not answer"
    STAMP = "the stamp differs from the manifests"
    SNAPSHOT_LOST = "a snapshot that Iceberg does not have under its tag"
    TAG_UNKNOWN = "a tag of Astha's that the registry does not have"
    STATISTICS = "statistics"
    FILE_MISSING = "missing in storage"
    FILE_SIZE = "of another size in storage"
    CHECKSUM = "of another content in storage"


class Cause(msgspec.Struct, frozen=True):
    """Why, most likely, and the command that helps; None if no command can."""

    why: str
    repair: str | None


class Difference(msgspec.Struct, frozen=True):
    """`items` are the files, columns or numbers that differ, each on its own: all of them."""

    kind: Kind
    items: list[str]
    cause: Cause


class TableReport(msgspec.Struct):
    """One table. `digest`, `snapshot` and `position` are None for a table that is not for Iceberg."""

    table: str
    format: str
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    digest: str | None = None
    snapshot: int | None = None
    position: int | None = None
    objects_checked: int = 0
    bytes_checked: int = 0
    without_checksum: int = 0
    statistics_repaired: bool = False
    differences: list[Difference] = []

    @property
    def equal(self) -> bool:
        return not self.differences


class Report(msgspec.Struct):
    tables: list[TableReport]
    elsewhere: list[Difference] = []
    """What belongs to no table of the registry."""

    @property
    def equal(self) -> bool:
        return not self.elsewhere and all(table.equal for table in self.tables)
