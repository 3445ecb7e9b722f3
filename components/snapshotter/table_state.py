"""What is known of each table, kept by the events: its policy, its snapshots, and what came since the last one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
import structlog

from astha.events import Event, Operation
from components.snapshotter.policy import Policy, PolicyProblem, read_policy
from registry.contract import ConsistentRead
from registry.json_text import parse_json
from registry.models import LakeTable, Row, TableFile, TableMetadata, TableSnapshot

log = structlog.get_logger(__name__)

Trigger: TypeAlias = Literal["time", "size"]


class Growth(msgspec.Struct):
    """What inserts have brought. A compaction or a rollback brings nothing new."""

    rows: int = 0
    size_bytes: int = 0
    files: int = 0
    changes: int = 0  # of any kind

    def count(self, event: Event[TableFile]) -> None:
        self.changes += 1
        file = event.data
        if event.operation is Operation.INSERT and file.operation in ("insert", "import"):
            self.rows += file.row_count
            self.size_bytes += file.file_size
            self.files += 1

    def add(self, other: Growth) -> None:
        self.rows += other.rows
        self.size_bytes += other.size_bytes
        self.files += other.files
        self.changes += other.changes


class Book(msgspec.Struct):
    """Of one table. `rows` are its requests and snapshots, and expired ones that Iceberg still has."""

    metadata: TableMetadata
    policy: Policy
    rows: dict[int, TableSnapshot] = {}
    growth: Growth = msgspec.field(default_factory=Growth)
    set_aside: Growth = msgspec.field(default_factory=Growth)  # what the request under way takes care of
    asked_at: int = 0  # the last request
    failed_at: int | None = None  # the last snapshot, if it failed
    asking: bool = False  # our own request, whose event has not come yet
    newest: int = 0  # the highest id of a row that was seen, whatever became of it

    @property
    def waiting(self) -> bool:
        return self.asking or any(row.status == "requested" for row in self.rows.values())

    def due(self, now_ms: int, retry_after_ms: int) -> tuple[Trigger, str] | None:
        """Whether the table wants a snapshot now, and why. One at a time, and none of what has not changed."""
        policy, growth = self.policy, self.growth
        if not policy.automatic or self.waiting or not growth.changes:
            return None
        if self.failed_at is not None and now_ms < self.failed_at + retry_after_ms:
            return None
        for limit, found, what in (
            (policy.after_rows, growth.rows, "rows"),
            (policy.after_bytes, growth.size_bytes, "bytes"),
            (policy.after_files, growth.files, "files"),
        ):
            if limit is not None and found >= limit:
                return "size", f"{found:,} {what} since the last one"
        if policy.every_ms is not None and now_ms >= self.asked_at + policy.every_ms:
            return "time", f"{(now_ms - self.asked_at) / 1000:.0f} s since the last one" if self.asked_at else "first"
        return None

    def note(self, row: TableSnapshot) -> None:
        """A row as it is now. What came before a request is the request's, unless it fails."""
        before = self.rows.get(row.id)
        self.newest = max(self.newest, row.id)
        if row.status in ("requested", "created") or awaits_release(row):
            self.rows[row.id] = row
        else:
            self.rows.pop(row.id, None)
        if row.status == "requested" and before is None:
            self.asking = False
            self.asked_at = max(self.asked_at, row.created_at)
            self.set_aside.add(self.growth)
            self.growth = Growth()
        elif row.status == "created" and (before is None or before.status == "requested"):
            self.set_aside = Growth()
            self.failed_at = None
        elif row.status == "failed" and (before is None or before.status == "requested"):
            self.growth.add(self.set_aside)
            self.set_aside = Growth()
            self.failed_at = row.updated_at

    def forget(self, row: TableSnapshot) -> None:
        self.rows.pop(row.id, None)


def awaits_release(row: TableSnapshot) -> bool:
    """Expired, and Iceberg may still have it: a released one has lost its manifest list."""
    return row.status == "expired" and row.manifest_list is not None


class Books:
    def __init__(self, defaults: Policy) -> None:
        self._defaults = defaults
        self._books: dict[int, Book] = {}

    def __iter__(self) -> Iterator[tuple[int, Book]]:
        return iter(list(self._books.items()))

    def of(self, table_id: int) -> Book | None:
        return self._books.get(table_id)

    async def load(self, snapshot: ConsistentRead) -> None:
        """From the registry. Growth since the last snapshot is what the table has gained, as far as totals tell."""
        self._books = {}
        async for versions in snapshot.rows(TableMetadata):
            for metadata in versions:
                self._note_metadata(metadata)
        async for page in snapshot.rows(TableSnapshot):
            for row in page:
                if (book := self._books.get(row.table_id)) is not None:
                    book.note(row)
        async for tables in snapshot.rows(LakeTable):
            for table in tables:
                if (book := self._books.get(table.id)) is not None:
                    book.growth = _since_last(table, book)
                    book.set_aside = Growth()

    def apply(self, event: Event[Row]) -> None:
        row = event.data
        if isinstance(row, TableMetadata):
            if event.operation is Operation.DELETE:
                self._books.pop(row.table_id, None)
            else:
                self._note_metadata(row)
        elif (book := self._books.get(row.table_id if isinstance(row, TableFile | TableSnapshot) else 0)) is not None:
            if isinstance(row, TableFile):
                book.growth.count(event)  # type: ignore[arg-type]  # of that row
            elif isinstance(row, TableSnapshot):
                (book.forget if event.operation is Operation.DELETE else book.note)(row)

    def _note_metadata(self, metadata: TableMetadata) -> None:
        book = self._books.get(metadata.table_id)
        if book is not None and book.metadata.schema_version > metadata.schema_version:
            return
        policy = self.policy(metadata)
        if book is None:
            self._books[metadata.table_id] = Book(metadata, policy)
        else:
            book.metadata, book.policy = metadata, policy

    def policy(self, metadata: TableMetadata) -> Policy:
        """A property that can't be read costs the table its own settings, not its snapshots."""
        try:
            return read_policy(parse_json(metadata.properties), self._defaults)
        except PolicyProblem as problem:
            log.error("a table's snapshot settings can't be read", table_id=metadata.table_id, problem=str(problem))
            return self._defaults


def _since_last(table: LakeTable, book: Book) -> Growth:
    last = max((row for row in book.rows.values() if row.status == "created"), key=lambda row: row.id, default=None)
    if last is None:
        return Growth(table.row_count, table.total_size, table.file_count, table.file_count)
    totals = parse_json(last.summary)
    known = totals if isinstance(totals, dict) else {}

    def gained(now: int, name: str) -> int:
        return max(0, now - int(str(known.get(name, 0))))

    return Growth(
        gained(table.row_count, "total-records"),
        gained(table.total_size, "total-files-size"),
        gained(table.file_count, "total-data-files"),
        int(table.last_modified > last.created_at),
    )
