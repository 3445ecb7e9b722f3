"""The change log's rows, decoded: one stretch of the log is one statement, one JSON text and one decoding.

SQLite puts the text together, so that a thousand rows cost one hop out of the interpreter lock instead of a thousand:
with a busy event loop beside it, a reader that fetches row by row waits for the lock at each of them. msgspec then
builds the registry's models from it, without anything in between. Each entry is an array whose first element names
operation and table, which is how the decoder knows the model and which images there must be:

    ["INSERT topics", sequence, transaction_number, changed_at, size, null, {"name": ...}]
    ["", sequence, transaction_number, changed_at, "table"]       a table that nobody subscribes to
"""

from __future__ import annotations

from types import GenericAlias
from typing import Any, ClassVar, Union, cast

import msgspec

from astha.errors import ConfigError, DecodeError
from astha.events import Operation
from registry.documents import Document
from registry.models import PUBLISHED, Row

_KINDS = {kind.table: kind for kind in PUBLISHED}

_LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'change_log'"
_NUMBERS = "sequence, ifnull(transaction_number, 'null'), changed_at"
_HEADER = f"printf('[\"\",%d,%s,%d,%s]', {_NUMBERS}, json_quote(table_name))"
# As blobs, or length() would count characters; printf copies faster than a chain of || does.
_SIZE = "ifnull(length(CAST(before AS BLOB)), 0) + ifnull(length(CAST(after AS BLOB)), 0)"
_WHOLE = (
    f"printf('[\"%s %s\",%d,%s,%d,%d,%s,%s]', operation, table_name, {_NUMBERS}, {_SIZE}, "
    "ifnull(before, 'null'), ifnull(after, 'null'))"
)


class Change(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One row of the log. `transaction_number` is None for writers that don't announce theirs."""

    sequence: int
    transaction_number: int | None
    changed_at: int


class RowChange(Change, array_like=True, frozen=True, gc=False):
    """With its images. Of each table and operation there is a subclass that says what they are."""

    operation: ClassVar[Operation]
    table: ClassVar[str]

    size_bytes: int
    before: Row | None
    after: Row | None


class Header(Change, array_like=True, frozen=True, gc=False, tag=""):
    """Without: of a table that nobody subscribes to, or because the images can't be had."""

    table: str


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """What one statement saw: the rows after a sequence, up to a number of them, and where the log ended then.

    `entries` is JSON. `last` counts all rows that were ever written, whether or not they have been trimmed.
    """

    last: int
    count: int
    first: int | None
    end: int | None
    entries: str | None

    @property
    def reaches_the_end(self) -> bool:
        return self.end is None or self.end >= self.last

    @property
    def has_holes(self) -> bool:
        return self.first is not None and self.end is not None and self.end - self.first + 1 != self.count


class LogDecoder:
    """For one set of tables: the statement that reads them, and what turns its answer into rows."""

    def __init__(self, tables: frozenset[str]) -> None:
        unknown = sorted(tables - _KINDS.keys())
        if unknown:
            raise ConfigError(f"not published, so there is nothing to subscribe to: {', '.join(unknown)}")
        listed = ", ".join(f"'{table}'" for table in sorted(tables))
        self.statement = _stretch(f"CASE WHEN table_name IN ({listed}) THEN {_WHOLE} ELSE {_HEADER} END")
        kinds = [_change(_KINDS[table], operation) for table in sorted(tables) for operation in Operation]
        either: Any = Union  # of types made at run time
        entries: Any = GenericAlias(list, (either[(*kinds, Header)],))
        # Not strict, because SQLite's booleans are 0 and 1. Its tables are, so nothing else profits from that.
        self._decoder: msgspec.json.Decoder[list[RowChange | Header]] = msgspec.json.Decoder(
            entries, strict=False, dec_hook=_document
        )

    def decode(self, stretch: Stretch) -> list[RowChange | Header]:
        """All or nothing: DecodeError if a single entry is not what its table's model needs."""
        if stretch.entries is None:
            return []
        where = f"change log, {stretch.count} rows from sequence {stretch.first}"
        try:
            changes = self._decoder.decode(f"[{stretch.entries}]")
        except (msgspec.DecodeError, UnicodeError, TypeError) as error:
            raise DecodeError(f"{where}: {error}") from error
        if len(changes) != stretch.count:
            raise DecodeError(f"{where}: an image that is not one JSON object")
        return changes


def _stretch(entry: str) -> str:
    return (
        f"SELECT ({_LAST}), count(*), min(sequence), max(sequence), group_concat(entry, ',') FROM "
        f"(SELECT sequence, {entry} AS entry FROM change_log WHERE sequence > ? ORDER BY sequence LIMIT ?)"
    )


HEADERS = _stretch(_HEADER)
"""Like a decoder's statement, but of every row only the header."""

_headers = msgspec.json.Decoder(list[Header])


def decode_headers(stretch: Stretch) -> list[Header]:
    return [] if stretch.entries is None else _headers.decode(f"[{stretch.entries}]")


def _change(kind: type[Row], operation: Operation) -> type[RowChange]:
    before = None if operation is Operation.INSERT else kind
    after = None if operation is Operation.DELETE else kind
    made = msgspec.defstruct(
        f"{kind.__name__}{operation.title()}",
        [("before", before), ("after", after)],
        bases=(RowChange,),
        namespace={"operation": operation, "table": kind.table},
        tag=f"{operation} {kind.table}",
        array_like=True,
        frozen=True,
        gc=False,
    )
    return cast("type[RowChange]", made)


def _document(kind: type, value: object) -> object:
    if kind is Document and isinstance(value, str):
        return Document(value)
    raise TypeError(f"{kind.__name__} can't be read from {type(value).__name__}")
