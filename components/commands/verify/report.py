"""The report of a verification, for terminals and for `--json`."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class DifferenceKind(StrEnum):
    """The value is shown to users."""

    NOT_COMMITTED = "registered, but not in Iceberg"
    NOT_REGISTERED = "in Iceberg, but not registered"
    TWICE = "twice in Iceberg"
    DELETES_LOST = "a registered delete file that Iceberg does not have: its rows have come back"
    DELETES_UNKNOWN = "a delete file in Iceberg that is not registered"
    DELETES_MISSING = "a delete file that is missing in storage: the table can't be read"
    DESCRIBED_DIFFERENTLY = "described differently in Iceberg"
    NO_ICEBERG_TABLE = "no Iceberg table"
    NO_REGISTRY_TABLE = "an Iceberg table that the registry does not have"
    SCHEMA = "schema"
    EXTERNAL_COMMIT = "a commit by another engine"
    STOPPED = "stopped"
    UNREADABLE = "can't be read"
    NO_ANSWER = "its storage does not answer"
    STAMP = "the stamp differs from the manifests"
    SNAPSHOT_LOST = "a snapshot that Iceberg does not have under its tag"
    TAG_UNKNOWN = "a tag of Astha's that the registry does not have"
    STATISTICS = "statistics"
    FILE_MISSING = "missing in storage"
    FILE_SIZE = "different size in storage"
    CHECKSUM = "different content in storage"


class Cause(msgspec.Struct, frozen=True):
    """The likely cause, and the command that repairs it; None if no command can."""

    reason: str
    repair: str | None


class Difference(msgspec.Struct, frozen=True):
    """`items` lists every file, column or number that differs."""

    kind: DifferenceKind
    items: list[str]
    cause: Cause


class TableVerification(msgspec.Struct):
    """`digest`, `snapshot` and `position` are None for a table that is not in Iceberg.

    `rows` counts the rows of the data files, `rows_deleted` those of them that position deletes name: the table has the
    difference. Rows that equality deletes match are not counted, because only a reader of the whole table can.
    """

    table: str
    format: str
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    delete_files: int = 0
    rows_deleted: int = 0
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


class VerificationReport(msgspec.Struct):
    tables: list[TableVerification]
    elsewhere: list[Difference] = []
    """Differences that belong to no table of the registry."""

    @property
    def equal(self) -> bool:
        return not self.elsewhere and all(table.equal for table in self.tables)
