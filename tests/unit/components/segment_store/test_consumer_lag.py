from __future__ import annotations

from components.segment_store.consumer_lag import GroupLag, lag_metrics
from registry.models import ConsumerOffset


def lag_of(*partitions: tuple[int, int, int]) -> GroupLag:
    """Each partition has a committed offset, the time of the commit, and an end."""
    lag = GroupLag("readers", "orders")
    for number, (committed, at, end) in enumerate(partitions):
        lag.add(ConsumerOffset("readers", "orders", number, committed, None, at), end)
    return lag


def shown(*lags: GroupLag) -> list[tuple[str, float]]:
    return [(metric.name, metric.value) for metric in lag_metrics(lags, now_ms=60_000)]


def test_lag_is_summed_and_idle_time_is_that_of_the_oldest_commit_with_lag() -> None:
    lag = lag_of((5, 1_000, 5), (5, 20_000, 8), (0, 50_000, 2))
    assert shown(lag) == [("consumer_lag_records", 5), ("consumer_idle_seconds", 40)]


def test_a_group_without_lag_is_not_idle() -> None:
    assert shown(lag_of((5, 1_000, 5))) == [("consumer_lag_records", 0), ("consumer_idle_seconds", 0)]


def test_the_number_of_series_is_bounded_and_the_largest_lags_are_kept() -> None:
    found = shown(*(lag_of((0, 0, end)) for end in range(600)))
    records = [value for name, value in found if name == "consumer_lag_records"]
    assert records == list(range(599, 99, -1))
