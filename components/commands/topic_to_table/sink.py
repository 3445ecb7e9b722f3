"""A topic on its way into a table: round after round, each of them once, whoever else is at it and whatever dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeAlias

import msgspec
import structlog

from astha.errors import AsthaError
from components.commands.topic_to_table.conversion import Values, wanted_columns
from components.commands.topic_to_table.micro_batches import Planner, Round, Standing, look
from components.commands.topic_to_table.writer import RoundOrder
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.table_lookup import TableName, current_metadata, find_table, full_name
from registry.contract import MetadataStore
from registry.errors import RegistryError
from registry.inputs import Registration

log = structlog.get_logger(__name__)

RunRound: TypeAlias = Callable[[RoundOrder, tuple[str, ...]], Awaitable[None]]
"""Reads the round's records, of these columns beside their places, and registers what they become with its steps."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants of which topic in which table."""

    topic: str
    table: str
    group: str | None = None
    values: Values = "json"
    bad: Literal["stop", "skip"] = "stop"
    max_bytes: int = 256 << 20
    skip_lost: bool = False

    @property
    def group_id(self) -> str:
        """One for the table, however its name was written."""
        return self.group or f"to-table:{TableName.parse(self.table)}"


class Tally(msgspec.Struct):
    """Of what this process has done."""

    rounds: int = 0
    records: int = 0
    rows: int = 0
    skipped: int = 0
    files: int = 0
    lost: int = 0  # deleted before they were read
    overtaken: int = 0  # rounds that another was quicker with


class TopicTable:
    def __init__(self, store: MetadataStore, wish: Wish, run_round: RunRound) -> None:
        self._store = store
        self._wish = wish
        self._run_round = run_round
        self.tally = Tally()
        self.standing: Standing | None = None
        self.full = False  # the last round was as large as one may be: there may be more

    async def begin(self) -> Standing:
        """NotFound and Unsuitable before anything is started; else the group exists."""
        wish = self._wish
        await self._columns()
        found = await self.look()
        await self._store.ensure_consumer_group(wish.group_id)
        return found

    async def look(self) -> Standing:
        self.standing = await look(self._store, self._wish.group_id, self._wish.topic)
        return self.standing

    async def advance(self, stops: Mapping[int, int] | None = None) -> bool:
        """One round, up to ``stops`` or the end; False if there is nothing left.

        Raises what the round raised, if nothing of it was registered.
        """
        wish = self._wish
        table, columns = await self._columns()
        planner = Planner(
            self._store, wish.group_id, wish.topic, table, max_bytes=wish.max_bytes, skip_lost=wish.skip_lost
        )
        plan = await planner.plan(await self.look(), stops)
        if plan is None:
            self.full = False
            return False
        self.full = plan.size_bytes >= wish.max_bytes
        try:
            await self._run(plan, columns)
        except (AsthaError, RegistryError) as error:
            # Whoever failed may have registered it all the same: the registry knows.
            if not (await self.look()).has_moved(plan):
                raise
            log.debug("a round failed, and the group has moved", round=plan.id, error=str(error))
            self._count(plan, await self.look(), certain=False)
        else:
            self._count(plan, await self.look(), certain=True)
        return True

    async def _run(self, plan: Round, columns: tuple[str, ...]) -> None:
        if plan.records:
            order = RoundOrder(plan, self._wish.values, skip=self._wish.bad == "skip")
            await self._run_round(order, columns)
            return
        table = await find_table(self._store, plan.table)
        only_steps = Registration(table_id=table.id, files=[], advances=plan.advances(0, 0, 0))
        await self._store.register_files([only_steps])

    def _count(self, plan: Round, standing: Standing, *, certain: bool) -> None:
        summary = standing.summary(plan)
        if summary is None and not certain:
            self.tally.overtaken += 1
            return
        self.tally.rounds += 1
        self.tally.records += plan.records
        self.tally.lost += plan.lost
        if summary is not None:
            self.tally.rows += summary.rows
            self.tally.skipped += summary.skipped
            self.tally.files += summary.files
        else:  # others have written over its notes, which takes several of them
            self.tally.rows += plan.records

    async def _columns(self) -> tuple[str, tuple[str, ...]]:
        """The table's full name, and what it takes of a record by the schema that it has now."""
        table = await find_table(self._store, self._wish.table)
        schema = TableSchema.of(await current_metadata(self._store, table), table=full_name(table))
        return full_name(table), wanted_columns(schema, self._wish.values)
