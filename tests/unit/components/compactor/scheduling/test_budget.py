from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from components.compactor.scheduling.budget import HOUR_MS, Budget, BudgetLimits

NOW = 10 * HOUR_MS


def test_most_jobs_at_a_time() -> None:
    budget = Budget(BudgetLimits(concurrent_jobs=2), NOW)
    budget.begin()
    assert budget.allows(NOW)
    budget.begin()
    assert not budget.allows(NOW)
    assert budget.why_not(NOW) == "2 jobs are running, which is the limit"
    assert budget.allows_at(NOW) is None, "time alone does not help"
    budget.end()
    assert budget.allows(NOW)
    assert budget.left(NOW) is None


def test_bytes_per_hour() -> None:
    budget = Budget(BudgetLimits(bytes_per_hour=3_600), NOW)
    budget.spend(5_400, NOW)  # more than there is: the balance is negative
    assert not budget.allows(NOW)
    assert budget.left(NOW) == -1_800
    assert budget.why_not(NOW) == "the limit of 3,600 bytes per hour is used up"
    at = budget.allows_at(NOW)
    assert at is not None
    assert NOW + HOUR_MS // 2 < at <= NOW + HOUR_MS // 2 + 2
    assert not budget.allows(NOW + HOUR_MS // 2)
    assert budget.allows(at)
    assert budget.left(NOW + 9 * HOUR_MS) == 3_600, "an hour's worth at most"


def test_a_clock_that_is_set_back_adds_nothing() -> None:
    budget = Budget(BudgetLimits(bytes_per_hour=3_600), NOW)
    budget.spend(3_600, NOW)
    assert not budget.allows(NOW - HOUR_MS)
    assert budget.left(NOW) == 3_600, "an hour after the hour that came again"


spent = st.lists(st.tuples(st.integers(NOW - 3 * HOUR_MS // 2, NOW), st.integers(0, 10_000)), max_size=20)


@settings(deadline=None)
@given(spent)
def test_the_budget_survives_a_restart(drawn: list[tuple[int, int]]) -> None:
    recent = sorted((at, size) for at, size in drawn if at >= NOW - HOUR_MS)
    lived = Budget(BudgetLimits(bytes_per_hour=7_200), NOW - HOUR_MS)
    for at, size in recent:
        lived.spend(size, at)
    restarted = Budget(BudgetLimits(bytes_per_hour=7_200), NOW)
    restarted.restore(drawn, NOW)
    left, known = restarted.left(NOW), lived.left(NOW)
    assert left is not None
    assert known is not None
    assert abs(left - known) <= 1
