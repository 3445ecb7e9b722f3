"""State of the Iceberg updater in the registry: the tables that it could not bring up to date.

The updater records them before it acknowledges the changes that it skipped; other components and commands read them.
Such a table has a pending comparison with the registry, whatever position the updater has acknowledged.
"""

from __future__ import annotations

import msgspec

from registry.contract import DaemonState
from registry.position import AnySnapshotVisibility, Position, SequenceVisibility

_NAME = "iceberg_updater.tables"
"""A row of the registry's own `source_identity` table, which is not published."""

_LONGEST_REASON = 1_000


class FailingTable(msgspec.Struct, frozen=True):
    """`stopped`: the operator has to act, and the reason says how. Times are UTC epoch milliseconds."""

    table_id: int
    table: str
    reason: str
    since: int
    attempts: int = 0
    next_try: int = 0
    stopped: bool = False

    @property
    def summary(self) -> str:
        return f"the Iceberg updater cannot update {self.table}, {self.attempts:,} attempts so far: {self.reason}"


class Compared(msgspec.Struct, frozen=True):
    """The visibility of the registry snapshot that a table was compared with. Events beyond `until` are not in it."""

    visibility: AnySnapshotVisibility
    until: Position

    def contains(self, transaction: int, position: Position) -> bool:
        return position <= self.until and self.visibility.contains(transaction, position)

    def splits(self, transaction: int, position: Position) -> bool:
        return isinstance(self.visibility, SequenceVisibility) and self.visibility.splits(transaction, position)


class UpdaterState(msgspec.Struct):
    """By table id."""

    troubled: dict[int, FailingTable] = {}
    compared: dict[int, Compared] = {}


async def read_updater_state(store: DaemonState) -> UpdaterState:
    found = await store.get_source_identity(_NAME)
    return UpdaterState() if found is None else msgspec.json.decode(found.identity, type=UpdaterState)


async def write_updater_state(store: DaemonState, state: UpdaterState) -> None:
    troubled = {
        table_id: msgspec.structs.replace(table, reason=table.reason[:_LONGEST_REASON])
        for table_id, table in state.troubled.items()
    }
    await store.record_source_identity(_NAME, msgspec.json.encode(UpdaterState(troubled, state.compared)).decode())


async def read_failing_tables(store: DaemonState) -> dict[int, FailingTable]:
    return (await read_updater_state(store)).troubled
