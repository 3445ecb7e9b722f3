"""Tables that the Iceberg updater could not bring up to date, as the registry keeps them.

The updater writes them before it acknowledges the changes that it left out; other components and commands read them.
Such a table owes a comparison with the registry, whatever position the updater's ledger entry has.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from registry.contract import DaemonBooks
from registry.position import Position, SequenceVisibility, XidVisibility

AnySnapshotVisibility: TypeAlias = SequenceVisibility | XidVisibility

_NAME = "iceberg_updater.tables"
"""A row of the registry's own `source_identity`: the daemon's notes, which are not published."""

_LONGEST_REASON = 1_000


class FailingTable(msgspec.Struct, frozen=True):
    """`stopped`: a person has to do something, and the reason says what. Times are UTC epoch milliseconds."""

    table_id: int
    table: str
    reason: str
    since: int
    attempts: int = 0
    next_try: int = 0
    stopped: bool = False

    @property
    def told(self) -> str:
        return f"the Iceberg updater has trouble with {self.table}, {self.attempts:,} attempts so far: {self.reason}"


class Compared(msgspec.Struct, frozen=True):
    """What the snapshot of the registry contained that a table was compared with. Beyond `until` the stream can bring
    nothing of it.
    """

    place: AnySnapshotVisibility
    until: Position

    def holds(self, transaction: int, position: Position) -> bool:
        return position <= self.until and self.place.contains(transaction, position)

    def splits(self, transaction: int, position: Position) -> bool:
        return isinstance(self.place, SequenceVisibility) and self.place.splits(transaction, position)


class UpdaterState(msgspec.Struct):
    """By table id."""

    troubled: dict[int, FailingTable] = {}
    compared: dict[int, Compared] = {}


async def read_updater_state(store: DaemonBooks) -> UpdaterState:
    found = await store.get_source_identity(_NAME)
    return UpdaterState() if found is None else msgspec.json.decode(found.identity, type=UpdaterState)


async def write_updater_state(store: DaemonBooks, notes: UpdaterState) -> None:
    troubled = {
        table_id: msgspec.structs.replace(table, reason=table.reason[:_LONGEST_REASON])
        for table_id, table in notes.troubled.items()
    }
    await store.record_source_identity(_NAME, msgspec.json.encode(UpdaterState(troubled, notes.compared)).decode())


async def read_failing_tables(store: DaemonBooks) -> dict[int, FailingTable]:
    return (await read_updater_state(store)).troubled
