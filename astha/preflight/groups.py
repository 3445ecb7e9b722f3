"""Checks which group of daemons runs each component: exactly one should."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from astha.change_log_claim import CHANGE_LOG, refusal
from astha.daemon_groups import GroupReport, read_groups
from astha.preflight.results import PreflightResult, ok, problem, warning
from registry.clock import Clock
from registry.contract import MetadataStore


async def group_checks(
    store: MetadataStore, clock: Clock, group: str, in_file: Collection[str], chosen: Collection[str]
) -> list[PreflightResult]:
    """`in_file`: the components of the subscriptions file; `chosen`: those that a daemon with these settings runs.

    A component is in another group while a daemon of that group runs it. A component that no daemon runs now is in
    another group if that group's ledger has it.
    """
    others = [found for found in await read_groups(store, clock) if found.name != group]
    results = []
    for name in in_file:
        groups = [group] if name in chosen else []
        groups += [other.name for other in others if name in other.running]
        if len(groups) > 1:
            results.append(_twice(name, groups))
        elif not groups and not any(name == component.name for other in others for component in other.components):
            results.append(_nowhere(name, group))
    return results or [ok("groups", _summary(group, chosen, others))]


async def change_log_check(store: MetadataStore, clock: Clock, group: str) -> list[PreflightResult]:
    """For a daemon that reads the change log of a SQLite registry."""
    claim = await store.get_daemon_lease(CHANGE_LOG)
    if claim is None or claim.holder == group or claim.expires_at <= clock.now_ms():
        return []
    return [problem("change log", refusal(claim.holder), "set source.url, or stop the daemons of that group")]


def _twice(name: str, groups: Sequence[str]) -> PreflightResult:
    return problem(
        f"component {name}",
        f"is in the groups {' and '.join(groups)} at once, so its work is done twice",
        "run it in one group only: restart the daemons of the others with --components without it",
    )


def _nowhere(name: str, group: str) -> PreflightResult:
    return warning(
        f"component {name}",
        f"is in no group: daemon.components of group {group} leaves it out, and no daemon of another group runs it",
        "add it to daemon.components here, or start a daemon of another group with it",
    )


def _summary(group: str, chosen: Collection[str], others: Sequence[GroupReport]) -> str:
    here = f"{group} runs {', '.join(chosen) or 'no component'}"
    elsewhere = [f"{other.name} runs {', '.join(sorted(other.running))}" for other in others if other.running]
    return "; ".join([here, *elsewhere])
