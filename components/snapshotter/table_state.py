"""The state of each table, maintained from events: its policy, its snapshots, and its growth since the last one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
import structlog

from astha.events import Event, Operation
from components.snapshotter.policy import PolicyProblem, SnapshotPolicy, read_policy
from registry.contract import ConsistentRead
from registry.json_text import parse_json
from registry.models import LakeTable, Row, TableFile, TableMetadata, TableSnapshot

log = structlog.get_logger(__name__)

Trigger: TypeAlias = Literal["time", "size"]


class Growth(msgspec.Struct):
    """Inserted data. Compactions and rollbacks do not count."""

    rows: int = 0
    size_bytes: int = 0
    files: int = 0
    changes: int = 0  # file events of any kind

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


class TableState(msgspec.Struct):
    """`rows` holds requested and created snapshots, and expired ones that Iceberg may still have."""

    metadata: TableMetadata
    policy: SnapshotPolicy
    rows: dict[int, TableSnapshot] = {}
    growth: Growth = msgspec.field(default_factory=Growth)
    requested_growth: Growth = msgspec.field(default_factory=Growth)  # covered by the open request
    requested_at: int = 0  # time of the last request
    failed_at: int | None = None  # time of the last snapshot, if it failed
    requesting: bool = False  # the snapshotter requests one; the event has not arrived yet
    newest_row_id: int = 0  # of all rows seen, whatever their status

    @property
    def has_open_request(self) -> bool:
        return self.requesting or any(row.status == "requested" for row in self.rows.values())

    def due(self, now_ms: int, retry_after_ms: int) -> tuple[Trigger, str] | None:
        """Returns the trigger and the reason if a snapshot should be requested now.

        Never while a request is open, nor for a table without changes.
        """
        policy, growth = self.policy, self.growth
        if not policy.automatic or self.has_open_request or not growth.changes:
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
        if policy.every_ms is not None and now_ms >= self.requested_at + policy.every_ms:
            return (
                "time",
                f"{(now_ms - self.requested_at) / 1000:.0f} s since the last one" if self.requested_at else "first",
            )
        return None

    def apply(self, row: TableSnapshot) -> None:
        """Applies a row's new state. Growth before a request counts as covered by it, unless it fails."""
        before = self.rows.get(row.id)
        self.newest_row_id = max(self.newest_row_id, row.id)
        if row.status in ("requested", "created") or awaits_release(row):
            self.rows[row.id] = row
        else:
            self.rows.pop(row.id, None)
        if row.status == "requested" and before is None:
            self.requesting = False
            self.requested_at = max(self.requested_at, row.created_at)
            self.requested_growth.add(self.growth)
            self.growth = Growth()
        elif row.status == "created" and (before is None or before.status == "requested"):
            self.requested_growth = Growth()
            self.failed_at = None
        elif row.status == "failed" and (before is None or before.status == "requested"):
            self.growth.add(self.requested_growth)
            self.requested_growth = Growth()
            self.failed_at = row.updated_at

    def remove(self, row: TableSnapshot) -> None:
        self.rows.pop(row.id, None)


def awaits_release(row: TableSnapshot) -> bool:
    """Whether it is expired and Iceberg may still have it: a released row has no manifest list."""
    return row.status == "expired" and row.manifest_list is not None


class TableStates:
    def __init__(self, defaults: SnapshotPolicy) -> None:
        self._defaults = defaults
        self._states: dict[int, TableState] = {}

    def __iter__(self) -> Iterator[tuple[int, TableState]]:
        return iter(list(self._states.items()))

    def get(self, table_id: int) -> TableState | None:
        return self._states.get(table_id)

    async def load(self, snapshot: ConsistentRead) -> None:
        """Reads the registry. Growth since the last snapshot is estimated from the totals of table and snapshot."""
        self._states = {}
        async for versions in snapshot.rows(TableMetadata):
            for metadata in versions:
                self._apply_metadata(metadata)
        async for page in snapshot.rows(TableSnapshot):
            for row in page:
                if (state := self._states.get(row.table_id)) is not None:
                    state.apply(row)
        async for tables in snapshot.rows(LakeTable):
            for table in tables:
                if (state := self._states.get(table.id)) is not None:
                    state.growth = _since_last(table, state)
                    state.requested_growth = Growth()

    def apply(self, event: Event[Row]) -> None:
        row = event.data
        if isinstance(row, TableMetadata):
            if event.operation is Operation.DELETE:
                self._states.pop(row.table_id, None)
            else:
                self._apply_metadata(row)
        elif (state := self._states.get(row.table_id if isinstance(row, TableFile | TableSnapshot) else 0)) is not None:
            if isinstance(row, TableFile):
                state.growth.count(event)  # type: ignore[arg-type]  # of that row
            elif isinstance(row, TableSnapshot):
                (state.remove if event.operation is Operation.DELETE else state.apply)(row)

    def _apply_metadata(self, metadata: TableMetadata) -> None:
        state = self._states.get(metadata.table_id)
        if state is not None and state.metadata.schema_version > metadata.schema_version:
            return
        policy = self.policy(metadata)
        if state is None:
            self._states[metadata.table_id] = TableState(metadata, policy)
        else:
            state.metadata, state.policy = metadata, policy

    def policy(self, metadata: TableMetadata) -> SnapshotPolicy:
        """Returns the defaults if a property cannot be read."""
        try:
            return read_policy(parse_json(metadata.properties), self._defaults)
        except PolicyProblem as problem:
            log.error("snapshot properties ignored: cannot be read", table_id=metadata.table_id, problem=str(problem))
            return self._defaults


def _since_last(table: LakeTable, state: TableState) -> Growth:
    last = max((row for row in state.rows.values() if row.status == "created"), key=lambda row: row.id, default=None)
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
