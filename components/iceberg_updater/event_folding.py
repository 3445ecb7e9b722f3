"""Groups registry events by table and folds them into the changes of Iceberg snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from astha.events import Event, Operation
from components.lib.lake.file_set_digest import LiveFile
from components.lib.lake.iceberg import SnapshotChange
from registry.models import Row, TableFile, TableMetadata
from registry.position import Position


class TableTransaction(msgspec.Struct):
    """The changes of one registry transaction to one table."""

    position: Position
    files: list[Event[TableFile]] = []
    metadata: list[Event[TableMetadata]] = []

    @property
    def transaction(self) -> int:
        return (self.files or self.metadata)[0].transaction


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
    def versions(self) -> set[int]:
        """Schema versions of the files, and those that the events add."""
        files = {event.data.schema_version for part in self.transactions for event in part.files}
        return files | {row.schema_version for row in self.rows}


def by_table(transactions: Iterable[Sequence[Event[Row]]]) -> dict[int, TableEvents]:
    """Returns the events of `table_files` and `table_metadata` by table id."""
    found: dict[int, TableEvents] = {}
    for events in transactions:
        parts: dict[int, TableTransaction] = {}
        for event in events:
            row = event.data
            if isinstance(row, TableFile):
                parts.setdefault(row.table_id, TableTransaction(event.position)).files.append(event)  # type: ignore[arg-type]
            elif isinstance(row, TableMetadata):
                parts.setdefault(row.table_id, TableTransaction(event.position)).metadata.append(event)  # type: ignore[arg-type]
        for table_id, part in parts.items():
            found.setdefault(table_id, TableEvents(table_id)).transactions.append(part)
    return found


def joined(table_id: int, waiting: Iterable[TableEvents]) -> TableEvents:
    return TableEvents(table_id, [part for events in waiting for part in events.transactions])


def fold(transactions: Iterable[TableTransaction]) -> Iterator[tuple[SnapshotChange, Position]]:
    """Yields one change per snapshot: each swap alone, everything between two swaps together.

    A transaction is never divided.
    """
    pending = _NetChange()
    last: Position | None = None
    for transaction in transactions:
        if not transaction.files:
            continue
        if is_swap(transaction):
            if not pending.empty and last is not None:
                yield pending.change(), last
            pending = _NetChange()
            pending.apply(transaction.files)
            yield pending.change(replaces=True), transaction.position
            pending = _NetChange()
        else:
            pending.apply(transaction.files)
            last = transaction.position
    if not pending.empty and last is not None:
        yield pending.change(), last


def is_swap(transaction: TableTransaction) -> bool:
    """Whether a compaction rewrote the same rows to other files: one operation, and equal row counts."""
    added = [event.data for event in transaction.files if event.operation is Operation.INSERT]
    removed = [event.data for event in transaction.files if event.operation is Operation.DELETE]
    return (
        bool(added and removed)
        and len(added) + len(removed) == len(transaction.files)
        and all(file.operation == "compaction" for file in added)
        and len({file.operation_id for file in added}) == 1
        and added[0].operation_id is not None
        and sum(file.row_count for file in added) == sum(file.row_count for file in removed)
    )


class _NetChange:
    """The net effect of events: a file that is added and removed again cancels out."""

    def __init__(self) -> None:
        self._added: dict[str, TableFile] = {}
        self._removed: dict[str, LiveFile] = {}

    def apply(self, events: Iterable[Event[TableFile]]) -> None:
        for event in events:
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
        return not self._added and not self._removed

    def change(self, *, replaces: bool = False) -> SnapshotChange:
        return SnapshotChange(list(self._added.values()), list(self._removed.values()), replaces)
