"""Why: decisions and plans as documents for the journal, in numbers that a person can follow."""

from __future__ import annotations

import msgspec

from components.compactor.planning.file_selection import Plan
from components.compactor.scheduling.policy import Policy
from components.compactor.scheduling.scoring import Heap, Verdict
from registry.json_text import JsonText, JsonValue, to_json_text

MOST_GROUPS = 20
"""Of a plan: an explanation has a bound, too."""


def explain_decision(verdict: Verdict, policy: Policy) -> JsonText:
    return to_json_text(
        {
            "rule": verdict.rule,
            "counts": {"small": _counts(verdict.small, policy), "to_merge": _counts(verdict.picked, policy)},
            "cost": _cost(verdict.picked, policy),
            "score": round(verdict.score, 6),
            "until": verdict.until_ms,
            "policy": policy.shown(),
        }
    )


def explain_plan(plan: Plan, policy: Policy, decided: JsonText | None = None) -> JsonText:
    """With what was decided before it, if anything was."""
    files, size = plan.input_files, plan.input_bytes
    outputs = sum(group.outputs for group in plan.groups)
    told: dict[str, JsonValue] = {
        "rule": plan.rule,
        "strategy": plan.strategy,
        "why": plan.why,
        "counts": {"small": plan.small, "young": plan.young, "left_for_later": plan.left, "inputs": files},
        "cost": {"bytes_rewritten": size, "bytes_per_file_removed": size // max(files - outputs, 1)},
        "outputs": outputs,
        "score": round(plan.score, 6),
        "groups": [
            {"files": len(group.files), "bytes": group.size_bytes, "outputs": group.outputs}
            for group in plan.groups[:MOST_GROUPS]
        ],
        "policy": policy.shown(),
    }
    if plan.left_out:
        told["left_out"] = plan.left_out
    if len(plan.groups) > MOST_GROUPS:
        told["groups_in_all"] = len(plan.groups)
    if decided is not None:
        told["decision"] = decided
    return to_json_text(told)


def _counts(heap: Heap, policy: Policy) -> dict[str, JsonValue]:
    return {**msgspec.structs.asdict(heap), "outputs": heap.outputs(policy) if heap.files else 0}


def _cost(heap: Heap, policy: Policy) -> dict[str, JsonValue]:
    removed = heap.removed(policy) if heap.files else 0
    return {"bytes_rewritten": heap.size_bytes, "bytes_per_file_removed": heap.size_bytes // max(removed, 1)}
