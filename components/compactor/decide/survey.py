"""A partition as the registry has it now, and a plan for it: the one place of this package that asks the registry."""

from __future__ import annotations

import msgspec

from components.compactor.decide.planner import Plan, gather, plan
from components.compactor.decide.policy import Policy, PolicyProblem, read_policy
from components.compactor.decide.rules import DISABLED, OVER, SETTINGS
from registry.contract import MetadataStore
from registry.models import LakeTable, TableMetadata


class Survey(msgspec.Struct, frozen=True):
    table: LakeTable
    versions: tuple[TableMetadata, ...]  # all of them, the current one first
    policy: Policy
    plan: Plan

    @property
    def metadata(self) -> TableMetadata:
        return self.versions[0]


async def survey(
    store: MetadataStore, table_id: int, partition_path: str, defaults: Policy, now_ms: int, *, forced: bool = False
) -> Survey | None:
    """None if there is no such table any more. ``forced``: by hand, whatever age, cost and settings say.

    A plan without groups says why. Rows are read page by page; nothing is held open.
    """
    table = await store.get_table_by_id(table_id)
    versions = await store.list_table_metadata(table_id)
    if table is None or not versions:
        return None
    versions.sort(key=lambda version: -version.schema_version)
    current = versions[0]
    policy, refusal = defaults, None
    try:
        policy = read_policy(current.properties.load(), defaults)
    except PolicyProblem as problem:
        refusal = Plan(rule=SETTINGS, reason=str(problem))
    if table.status != "active":
        refusal = Plan(rule=OVER, reason="the table is being dropped")
    elif not policy.enabled and not forced:
        refusal = Plan(rule=DISABLED, reason="compaction.enabled is false for this table")
    if refusal is not None:
        return Survey(table, tuple(versions), policy, refusal)
    selection = await gather(store.stream_files(table_id, partition_path=partition_path), policy, now_ms, forced=forced)
    found = plan(selection, policy, has_order=bool(current.sort_by.load()), forced=forced)
    return Survey(table, tuple(versions), policy, found)
