"""Errors of an insert, besides those of the registry and the storage.

InsertError
|-- NoSuchTable      the table does not exist              -> create it, or correct the name
`-- RowsRefused      rows that don't match the schema      -> correct the named row and column; nothing was written
"""

from __future__ import annotations

from astha.errors import AsthaError


class InsertError(AsthaError):
    pass


class NoSuchTable(InsertError):
    pass


class RowsRefused(InsertError):
    """``row`` counts from 1; None if it concerns all rows, for example when a column is missing."""

    def __init__(self, why: str, *, row: int | None = None, column: str | None = None) -> None:
        place = ", ".join(
            part for part in (f"row {row:,}" if row else "", f"column {column!r}" if column is not None else "") if part
        )
        super().__init__(f"{place}: {why}" if place else why)
        self.why = why
        self.row = row
        self.column = column
