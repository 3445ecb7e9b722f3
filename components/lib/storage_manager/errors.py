"""What an insert may raise, beside the errors of registry and storage.

InsertError
|-- NoSuchTable      the table named does not exist        -> create it, or correct the name
`-- RowsRefused      rows that don't fit the schema        -> correct the named row and column; nothing was written
"""

from __future__ import annotations

from astha.errors import AsthaError


class InsertError(AsthaError):
    pass


class NoSuchTable(InsertError):
    pass


class RowsRefused(InsertError):
    """``row`` counts from 1; None if all rows are meant, as when a column is missing."""

    def __init__(self, why: str, *, row: int | None = None, column: str | None = None) -> None:
        place = ", ".join(
            part for part in (f"row {row:,}" if row else "", f"column {column!r}" if column is not None else "") if part
        )
        super().__init__(f"{place}: {why}" if place else why)
        self.why = why
        self.row = row
        self.column = column
