"""The first step: a partition's rows as they are now, and what is to be done with them."""

from __future__ import annotations

import msgspec

from astha.subscribers import LakeSettings
from components.compactor.execution.job_context import Reached, Step, go_on
from components.compactor.merge import Strategy
from components.compactor.planning.compaction_spec import Assignment
from components.compactor.planning.file_selection import Plan, gather, plan
from components.compactor.planning.left_out import LeftOut
from components.compactor.scheduling.explanation import explain_plan
from components.compactor.scheduling.policy import Policy, read_policy
from registry.clock import Clock
from registry.contract import MetadataStore
from registry.json_text import JsonText, parse_json
from registry.models import CompactionTrigger, LakeTable, TableMetadata

_FEWEST = 2  # files, of what somebody has asked for


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants a partition compacted, and how."""

    trigger: CompactionTrigger = "event"
    forced: bool = False  # any two small files, whatever it costs
    strategy: Strategy | None = None  # None: as the table's policy says
    position: int | None = None
    decided: JsonText | None = None  # why, as far as it was decided before


class Planned(msgspec.Struct, frozen=True):
    """``assignment`` is None if there is nothing to do, and the plan says why."""

    table: LakeTable
    metadata: TableMetadata  # the current version
    plan: Plan
    assignment: Assignment | None


class Planning:
    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        lake: LakeSettings,
        defaults: Policy,
        memory_bytes: int,
        reached: Reached = go_on,
        left_out: LeftOut | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._lake = lake
        self._defaults = defaults
        self._memory_bytes = memory_bytes
        self._reached = reached
        self.left_out = left_out or LeftOut(store, clock)

    async def plan(self, table_id: int, partition_path: str, wish: Wish) -> Planned | None:
        """None if the table is gone or going. PolicyProblem if its properties can't be read."""
        await self._reached(Step.PLAN)
        table = await self._store.get_table_by_id(table_id)
        versions = await self._store.list_table_metadata(table_id)
        if table is None or table.status != "active" or not versions:
            return None
        versions.sort(key=lambda version: version.schema_version, reverse=True)
        policy = self.policy_of(versions[0], wish)
        rows = self._store.stream_files(table_id, partition_path=partition_path)
        waits = {} if wish.forced else await self.left_out.of(table_id, partition_path)
        bad = {path: wait.reason for path, wait in waits.items()}
        selection = await gather(rows, policy, self._clock.now_ms(), forced=wish.forced, bad=bad)
        if bad:
            self.left_out.keep_only(table_id, partition_path, selection.left_out)
        made = plan(selection, policy, has_order=parse_json(versions[0].sort_by) != [], forced=wish.forced)
        if wish.strategy is not None and made.strategy == wish.strategy:
            made = msgspec.structs.replace(made, why="the strategy was asked for")
        if not made.groups:
            return Planned(table, versions[0], made, None)
        return Planned(table, versions[0], made, self._assigned(table, partition_path, versions, policy, made, wish))

    def policy_of(self, current: TableMetadata, wish: Wish) -> Policy:
        policy = read_policy(parse_json(current.properties), self._defaults)
        return policy if wish.strategy is None else msgspec.structs.replace(policy, strategy=wish.strategy)

    def _assigned(
        self,
        table: LakeTable,
        partition_path: str,
        versions: list[TableMetadata],
        policy: Policy,
        made: Plan,
        wish: Wish,
    ) -> Assignment:
        return Assignment(
            table=table,
            partition_path=partition_path,
            groups=tuple(group.files for group in made.groups),
            versions=tuple(versions),
            lake=self._lake,
            policy=policy,
            strategy=made.strategy,
            strategy_why=made.why,
            memory_bytes=self._memory_bytes,
            least=_FEWEST if wish.forced else policy.min_inputs,
            trigger=wish.trigger,
            rule=made.rule,
            explanation=explain_plan(made, policy, wish.decided),
            position=wish.position,
        )
