"""The first step of a job: reads a partition's rows as they are now, and plans it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from astha.subscribers import LakeSettings
from components.compactor.merge import Strategy
from components.compactor.planning.compaction_spec import CompactionSpec
from components.compactor.planning.file_selection import UNWRITABLE, CompactionPlan, make_plan, select_files
from components.compactor.planning.left_out import LeftOut
from components.compactor.planning.partition_deletes import read_partition_deletes
from components.compactor.scheduling.policy import CompactionPolicy, read_policy
from components.compactor.scheduling.scoring import DELETE_FILES
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from components.lib.lake.table_lookup import full_name
from registry.clock import Clock
from registry.contract import MetadataStore
from registry.json_text import JsonText, parse_json
from registry.models import CompactionTrigger, LakeTable, TableMetadata

_FORCED_MIN_FILES = 2


class CompactionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Why a partition is to be compacted, and how."""

    trigger: CompactionTrigger = "event"
    forced: bool = False  # merge any two small files, whatever it costs
    strategy: Strategy | None = None  # None: as the table's policy says
    position: int | None = None
    decided: JsonText | None = None  # the explanation of the decision


class PlannedJob(msgspec.Struct, frozen=True):
    """``spec`` is None if there is nothing to do; the plan says why."""

    table: LakeTable
    metadata: TableMetadata  # the current version
    plan: CompactionPlan
    spec: CompactionSpec | None


class Planner:
    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        lake: LakeSettings,
        defaults: CompactionPolicy,
        memory_bytes: int,
        left_out: LeftOut | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._lake = lake
        self._defaults = defaults
        self._memory_bytes = memory_bytes
        self.left_out = left_out or LeftOut(store, clock)

    async def plan(self, table_id: int, partition_path: str, request: CompactionRequest) -> PlannedJob | None:
        """Returns None if the table was dropped. Raises `PolicyProblem` if its properties can't be read."""
        table = await self._store.get_table_by_id(table_id)
        versions = await self._store.list_table_metadata(table_id)
        if table is None or table.status != "active" or not versions:
            return None
        versions.sort(key=lambda version: version.schema_version, reverse=True)
        policy = self.policy_of(versions[0], request)
        unwritable = why_not_writable(versions[0], full_name(table))
        if unwritable is not None:
            return PlannedJob(table, versions[0], CompactionPlan(rule=UNWRITABLE, reason=unwritable), None)
        deletes = await read_partition_deletes(self._store, table_id, partition_path)
        if deletes.reason is not None:
            return PlannedJob(table, versions[0], CompactionPlan(rule=DELETE_FILES, reason=deletes.reason), None)
        rows = self._store.stream_files(table_id, partition_path=partition_path)
        waits = {} if request.forced else await self.left_out.of(table_id, partition_path)
        bad = {path: wait.reason for path, wait in waits.items()}
        selection = await select_files(
            rows,
            policy,
            self._clock.now_ms(),
            forced=request.forced,
            bad=bad,
            versions=_with_current_spec(versions),
            deletes=deletes,
        )
        if bad:
            self.left_out.keep_only(table_id, partition_path, selection.left_out)
        order = parse_json(versions[0].sort_by)
        order_columns = len(order) if isinstance(order, list) else 0
        made = make_plan(selection, policy, order_columns=order_columns, forced=request.forced)
        if request.strategy is not None and made.strategy == request.strategy:
            made = msgspec.structs.replace(made, why="the strategy was requested")
        if not made.groups:
            return PlannedJob(table, versions[0], made, None)
        return PlannedJob(table, versions[0], made, self._spec(table, partition_path, versions, policy, made, request))

    def policy_of(self, current: TableMetadata, request: CompactionRequest) -> CompactionPolicy:
        policy = read_policy(parse_json(current.properties), self._defaults)
        return policy if request.strategy is None else msgspec.structs.replace(policy, strategy=request.strategy)

    def _spec(
        self,
        table: LakeTable,
        partition_path: str,
        versions: list[TableMetadata],
        policy: CompactionPolicy,
        made: CompactionPlan,
        request: CompactionRequest,
    ) -> CompactionSpec:
        return CompactionSpec(
            table=table,
            partition_path=partition_path,
            groups=tuple(group.files for group in made.groups),
            versions=tuple(versions),
            lake=self._lake,
            policy=policy,
            strategy=made.strategy,
            strategy_reason=made.why,
            memory_bytes=self._memory_bytes,
            min_files=_FORCED_MIN_FILES if request.forced else policy.min_inputs,
            trigger=request.trigger,
            rule=made.rule,
            explanation=made.explanation(policy, request.decided),
            position=request.position,
            has_deletes=made.has_deletes,
        )


def why_not_writable(metadata: TableMetadata, table: str) -> str | None:
    """Returns why a merge can't write files of the current version: another engine may have changed the table to it."""
    try:
        TableSchema.of(metadata, table=table)
    except SchemaProblem as problem:
        return str(problem)
    return None


def _with_current_spec(versions: Sequence[TableMetadata]) -> frozenset[int]:
    """Returns the versions whose files can be merged into files of the current one, which comes first.

    The fields' own ids do not count: Iceberg considers specs without them.
    """

    def key(version: TableMetadata) -> object:
        fields = parse_json(version.partition_by)
        if not isinstance(fields, list):
            return fields
        return [
            {name: value for name, value in field.items() if name != "field-id"} if isinstance(field, dict) else field
            for field in fields
        ]

    current = key(versions[0])
    return frozenset(version.schema_version for version in versions if key(version) == current)
