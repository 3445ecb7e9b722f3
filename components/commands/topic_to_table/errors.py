"""What `to-table` raises, besides the errors of registry, storage, Spark and segment store.

TopicTableError
|-- BadRecord          a record that is no row of the table        -> correct the table, or `--bad skip`
|-- UnsuitableTable    the table can't take records in this form   -> another table, or another `--values`
`-- MicroBatchFailed   Spark could not run a micro-batch           -> see the message; nothing was written
"""

from __future__ import annotations

from astha.errors import AsthaError


class TopicTableError(AsthaError):
    pass


class BadRecord(TopicTableError):
    """The message names partition and offset."""


class UnsuitableTable(TopicTableError):
    pass


class MicroBatchFailed(TopicTableError):
    """``transient``: registry or storage did not answer, so a retry may succeed."""

    def __init__(self, why: str, *, transient: bool = False) -> None:
        super().__init__(why)
        self.transient = transient
