"""Which commits are traced."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from astha.events import Commit, Transaction
from astha.events.traceparent import TraceParent
from astha.testing import ManualClock
from astha.tracing.sampling import CommitSampler
from astha.tracing.trace_ids import spread, trace_id_of, unsampled
from registry.position import Position


def commits(positions: Iterable[int], trace: TraceParent | None = None) -> list[Transaction]:
    return [
        Transaction(Commit(position, Position(position), position, 1, trace), [], frozenset()) for position in positions
    ]


def chosen(sampler: CommitSampler, transactions: list[Transaction]) -> set[int]:
    return {transaction.position for transaction in sampler.choose(transactions)}


@pytest.mark.parametrize("step", [1, 8, 56, 1 << 12, 1 << 24])
def test_the_ratio_holds_for_positions_at_any_distance(step: int) -> None:
    sampler = CommitSampler(0.01, 1e9, ManualClock())
    found = chosen(sampler, commits(range(1 << 30, (1 << 30) + 10_000 * step, step)))
    assert 90 <= len(found) <= 110


@pytest.mark.parametrize(("ratio", "number"), [(0.0, 0), (1.0, 1_000)])
def test_none_and_all(ratio: float, number: int) -> None:
    assert len(chosen(CommitSampler(ratio, 1e9, ManualClock()), commits(range(1_000)))) == number


def test_daemons_with_the_same_ratio_choose_the_same_commits_in_any_batches() -> None:
    one, other = (CommitSampler(0.1, 1e9, ManualClock()) for _ in range(2))
    positions = range(10_000)
    single = set().union(*(chosen(other, commits([position])) for position in positions))
    assert chosen(one, commits(positions)) == single


def test_a_sampler_of_opentelemetry_decides_the_same() -> None:
    theirs, ours = TraceIdRatioBased(0.1), CommitSampler(0.1, 1e9, ManualClock())
    for transaction in commits(range(1, 5_000)):
        decision = theirs.should_sample(None, trace_id_of(transaction.commit), "commit").decision
        assert (decision is Decision.RECORD_AND_SAMPLE) == (chosen(ours, [transaction]) != set())


async def test_the_limit_per_second_holds_and_recovers() -> None:
    clock = ManualClock()
    sampler = CommitSampler(1.0, 100.0, clock)
    assert len(chosen(sampler, commits(range(10_000)))) == 100
    assert chosen(sampler, commits(range(10))) == set()
    await clock.advance(0.5)
    assert len(chosen(sampler, commits(range(10_000)))) == 50


def test_the_sender_decides_for_a_commit_that_came_with_a_context() -> None:
    sampler = CommitSampler(0.0, 1e9, ManualClock())
    wanted, unwanted = commits([1], TraceParent(1, 1, True)), commits([2], TraceParent(1, 1, False))
    assert chosen(sampler, wanted + unwanted) == {1}
    assert unwanted[0].commit.trace is None
    everything = CommitSampler(1.0, 1e9, ManualClock())
    assert chosen(everything, commits([2], TraceParent(1, 1, False))) == set()


def test_the_limit_holds_for_contexts_of_others_too() -> None:
    found = commits(range(1_000), TraceParent(1, 1, True))
    assert len(chosen(CommitSampler(1.0, 10.0, ManualClock()), found)) == 10
    assert sum(transaction.commit.trace is not None for transaction in found) == 10


def test_ids_are_those_of_the_commit() -> None:
    commit = Commit(7, Position(9), 11)
    assert trace_id_of(commit) == trace_id_of(Commit(7, Position(9), 11, count=3))
    others = [Commit(8, Position(9), 11), Commit(7, Position(10), 11), Commit(7, Position(9), 12)]
    assert len({trace_id_of(each) for each in (commit, *others)}) == 4
    assert trace_id_of(commit) & (1 << 64) - 1 == spread(9)
    assert trace_id_of(Commit(-5, Position(2**63 - 1), -1)) < 1 << 128
    assert not unsampled(commit).sampled
