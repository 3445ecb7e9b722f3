"""What `to-table` may raise, beside the errors of registry, storage, Spark and segment store.

TopicTableError
|-- BadRecord     a record that is no row of the table         -> correct the table, or `--bad skip`
|-- Unsuitable    the table can't take records in this form    -> another table, or another `--values`
`-- RoundFailed   Spark could not carry a round out            -> see what it says; nothing of it was written
"""

from __future__ import annotations

from astha.errors import AsthaError


class TopicTableError(AsthaError):
    pass


class BadRecord(TopicTableError):
    """The message names partition and offset."""


class Unsuitable(TopicTableError):
    pass


class RoundFailed(TopicTableError):
    """``passing``: registry or storage did not answer, which may be over soon."""

    def __init__(self, why: str, *, passing: bool = False) -> None:
        super().__init__(why)
        self.passing = passing
