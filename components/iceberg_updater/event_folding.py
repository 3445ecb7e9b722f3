"""Groups registry events by table and folds them into the changes of Iceberg snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from astha.events import Event, Operation
from components.lib.lake.file_set_digest import LiveFile
from components.lib.lake.iceberg import SnapshotChange
from registry.models import IcebergCommit, Row, TableDeleteFile, TableFile, TableMetadata
from registry.position import Position


class TableTransaction(msgspec.Struct):
    """The changes of one registry transaction to one table."""

    position: Position
    files: list[Event[TableFile]] = []
    metadata: list[Event[TableMetadata]] = []
    deletes: list[Event[TableDeleteFile]] = []

    @property
    def transaction(self) -> int:
        return (self.files or self.metadata or self.deletes)[0].transaction


class TableEvents(msgspec.Struct):
    """The transactions to apply to one table, in order."""

    table_id: int
    transactions: list[TableTransaction] = []

    @property
    def rows(self) -> Iterator[TableMetadata]:
        """Schema versions as of the last event."""
        for transaction in self.transactions:
            yield from (event.data for event in transaction.metadata if event.operation is not Operation.DELETE)

    @property
    def changes_schema(self) -> bool:
        return any(transaction.metadata for transaction in self.transactions)

    @property
    def creates(self) -> bool:
        """Whether these events contain the table's creation."""
        return any(
            event.operation is Operation.INSERT and event.data.schema_version == 1
            for transaction in self.transactions
            for event in transaction.metadata
        )

    @property
    def drops(self) -> bool:
        return any(
            event.operation is Operation.DELETE for transaction in self.transactions for event in transaction.metadata
        )

    @property
    def adds_delete_files(self) -> bool:
        """Whether delete files were added that are not in Iceberg yet. Engines add them to both together."""
        return any(event.operation is Operation.INSERT for part in self.transactions for event in part.deletes)

    @property
    def versions(self) -> set[int]:
        """Schema versions of the files, and those that the events add."""
        files = {event.data.schema_version for part in self.transactions for event in part.files}
        return files | {row.schema_version for row in self.rows}


def by_table(transactions: Iterable[Sequence[Event[Row]]]) -> dict[int, TableEvents]:
    """Returns the events of `table_files`, `table_metadata` and `table_delete_files` by table id.

    Without those of a table that an engine has committed to in the same transaction: Iceberg has them already.
    """
    found: dict[int, TableEvents] = {}
    for events in transactions:
        parts: dict[int, TableTransaction] = {}
        for event in events:
            row = event.data
            if isinstance(row, TableFile):
                parts.setdefault(row.table_id, TableTransaction(event.position)).files.append(event)  # type: ignore[arg-type]
            elif isinstance(row, TableMetadata):
                parts.setdefault(row.table_id, TableTransaction(event.position)).metadata.append(event)  # type: ignore[arg-type]
            elif isinstance(row, TableDeleteFile):
                parts.setdefault(row.table_id, TableTransaction(event.position)).deletes.append(event)  # type: ignore[arg-type]
        for table_id in committed_by_engines([events]):
            parts.pop(table_id, None)
        for table_id, part in parts.items():
            found.setdefault(table_id, TableEvents(table_id)).transactions.append(part)
    return found


def committed_by_engines(transactions: Iterable[Sequence[Event[Row]]]) -> set[int]:
    """Returns the tables that engines have committed to through the catalog."""
    return {
        event.data.table_id
        for events in transactions
        for event in events
        if isinstance(event.data, IcebergCommit) and event.operation is Operation.INSERT
    }


def joined(table_id: int, waiting: Iterable[TableEvents]) -> TableEvents:
    return TableEvents(table_id, [part for events in waiting for part in events.transactions])


def fold(
    transactions: Iterable[TableTransaction], *, has_deletes: bool = False
) -> Iterator[tuple[SnapshotChange, Position]]:
    """Yields one change per snapshot: each swap alone, everything between two swaps together.

    A transaction is never divided. ``has_deletes``: the table has delete files of other engines.
    """
    pending = _NetChange()
    last: Position | None = None
    for transaction in transactions:
        if not transaction.files and not transaction.deletes:
            continue
        if is_swap(transaction, has_deletes=has_deletes):
            if not pending.empty and last is not None:
                yield pending.change(), last
            pending = _NetChange()
            pending.apply(transaction)
            yield pending.change(replaces=True), transaction.position
            pending = _NetChange()
        else:
            pending.apply(transaction)
            last = transaction.position
    if not pending.empty and last is not None:
        yield pending.change(), last


def is_swap(transaction: TableTransaction, *, has_deletes: bool = False) -> bool:
    """Whether a compaction rewrote the same rows to other files: one operation, and equal row counts.

    Rows that delete files name are in the old files and not in the new ones, which then have fewer.
    """
    added = [event.data for event in transaction.files if event.operation is Operation.INSERT]
    removed = [event.data for event in transaction.files if event.operation is Operation.DELETE]
    return (
        bool(added and removed)
        and len(added) + len(removed) == len(transaction.files)
        and all(file.operation == "compaction" for file in added)
        and len({file.operation_id for file in added}) == 1
        and added[0].operation_id is not None
        and _is_equal(
            sum(file.row_count for file in added),
            sum(file.row_count for file in removed),
            may_be_fewer=has_deletes or bool(transaction.deletes),
        )
    )


def _is_equal(added: int, removed: int, *, may_be_fewer: bool) -> bool:
    return added == removed or (may_be_fewer and added < removed)


class _NetChange:
    """The net effect of events: a file that is added and removed again cancels out."""

    def __init__(self) -> None:
        self._added: dict[str, TableFile] = {}
        self._removed: dict[str, LiveFile] = {}
        self._deletes_removed: dict[str, None] = {}

    def apply(self, transaction: TableTransaction) -> None:
        for gone in transaction.deletes:
            if gone.operation is Operation.DELETE:
                self._deletes_removed[gone.data.file_path] = None
        for event in transaction.files:
            if event.operation is not Operation.INSERT:
                self._remove(event.before or event.data)
            if event.operation is not Operation.DELETE:
                self._add(event.data)

    def _remove(self, file: TableFile) -> None:
        if self._added.pop(file.file_path, None) is None:
            self._removed[file.file_path] = LiveFile.of(file)

    def _add(self, file: TableFile) -> None:
        if self._removed.get(file.file_path) == LiveFile.of(file):
            del self._removed[file.file_path]
        else:
            self._added[file.file_path] = file

    @property
    def empty(self) -> bool:
        return not self._added and not self._removed and not self._deletes_removed

    def change(self, *, replaces: bool = False) -> SnapshotChange:
        return SnapshotChange(
            list(self._added.values()), list(self._removed.values()), replaces, list(self._deletes_removed)
        )
