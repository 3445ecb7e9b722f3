"""A commit as a client of the REST protocol sends it: requirements and updates of one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

from components.lib.lake.engine_commits.errors import InvalidCommit
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata
from components.lib.lake.engine_commits.metadata_builder import DEFAULT_VERSION, MetadataBuilder
from components.lib.lake.engine_commits.requirements import Requirement, check, creates
from components.lib.lake.engine_commits.updates import Update, UpgradeFormatVersion

T = TypeVar("T")

_FEW = msgspec.Meta(max_length=2_000)
"""Real commits have tens of updates. Applying very many of one kind takes time in their square."""


class TableIdentifier(msgspec.Struct, frozen=True):
    namespace: list[str]
    name: str


class CommitRequest(msgspec.Struct, frozen=True):
    """`identifier` is None unless the commit is part of a transaction over several tables."""

    requirements: Annotated[list[Requirement], _FEW]
    updates: Annotated[list[Update], _FEW]
    identifier: TableIdentifier | None = None

    @classmethod
    def parse(cls, body: bytes) -> CommitRequest:
        """Raises `InvalidCommit` if it is none, or has a requirement or update of an unknown kind."""
        return _parsed(_one, body)

    @property
    def creates(self) -> bool:
        return creates(self.requirements)

    def check(self, base: IcebergMetadata | None) -> None:
        """Raises `CommitConflict` if the table (None: there is none) does not meet the requirements."""
        check(self.requirements, base)

    def apply(self, base: IcebergMetadata | None, base_location: str | None, *, now_ms: int) -> IcebergMetadata:
        """Returns the new metadata without stamp, or `base` itself if nothing changes.

        Raises `InvalidCommit`, or `CommitConflict` for a snapshot that was built on an older state.
        """
        version = next(
            (update.format_version for update in self.updates if isinstance(update, UpgradeFormatVersion)),
            DEFAULT_VERSION,
        )
        builder = MetadataBuilder(base, now_ms=now_ms, format_version=version)
        for update in self.updates:
            builder.apply(update)
        return builder.build(base_location)


class _Transaction(msgspec.Struct, rename="kebab"):
    table_changes: Annotated[list[CommitRequest], _FEW]


_one = msgspec.json.Decoder(CommitRequest).decode
_several = msgspec.json.Decoder(_Transaction).decode


def parse_transaction(body: bytes) -> list[CommitRequest]:
    """Parses a commit to several tables. Raises `InvalidCommit` if a table is missing or appears twice."""
    found = _parsed(_several, body).table_changes
    named = [(*change.identifier.namespace, change.identifier.name) for change in found if change.identifier]
    if len(named) < len(found):
        raise InvalidCommit("each change of a transaction needs an identifier")
    if len(set(named)) < len(named):
        raise InvalidCommit("a transaction has at most one change per table")
    return found


def _parsed(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except (msgspec.DecodeError, RecursionError) as error:  # a ValidationError is one
        raise InvalidCommit(f"not a commit: {error}") from error
