from __future__ import annotations

import inspect

import pytest

from registry.contract import MetadataStore
from registry.errors import Conflict, Unavailable
from registry.stores.cockroachdb import CockroachStore
from registry.stores.cockroachdb.retries import Retries, TransactionFailed, current_verb, repeat_verbs, repeated

AT_ONCE = Retries(attempts=5, within_s=0.0, first_s=0.0, longest_s=0.0)


class Failing:
    """Fails so many times."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.retries = AT_ONCE
        self.calls = 0
        self.verbs: list[str | None] = []
        self._failures = failures
        self._error = error or TransactionFailed("restart transaction")

    @repeated
    async def list_topics(self) -> int:
        return await self.list_tables()

    @repeated
    async def list_tables(self) -> int:
        self.calls += 1
        self.verbs.append(current_verb())
        if self.calls <= self._failures:
            raise self._error
        return self.calls


async def test_a_verb_is_repeated_until_it_succeeds() -> None:
    store = Failing(4)
    assert await store.list_tables() == 5
    assert current_verb() is None


async def test_a_verb_inside_another_is_not_repeated_by_itself() -> None:
    store = Failing(100)
    with pytest.raises(Unavailable, match=r"restart transaction \(5 attempts\)") as caught:
        await store.list_topics()
    assert not isinstance(caught.value, TransactionFailed)  # it is not repeated by anyone else
    assert store.calls == 5
    assert set(store.verbs) == {"list_topics"}


async def test_other_errors_pass() -> None:
    store = Failing(1, Conflict("changed"))
    with pytest.raises(Conflict):
        await store.list_tables()
    assert store.calls == 1


def test_delays_are_spread_below_a_limit_that_doubles() -> None:
    retries = Retries(attempts=30, first_s=0.01, longest_s=1.0)
    for failures, limit in ((1, 0.01), (2, 0.02), (5, 0.16), (8, 1.0), (30, 1.0)):
        delays = [retries.delay_s(failures) for _ in range(200)]
        assert 0 <= min(delays) < limit / 4
        assert limit * 3 / 4 < max(delays) <= limit


def test_every_verb_is_repeated() -> None:
    verbs = [
        name
        for name, verb in inspect.getmembers(MetadataStore, inspect.iscoroutinefunction)
        if not name.startswith("_") and name != "close"
    ]
    assert len(verbs) > 80
    assert [name for name in verbs if not hasattr(getattr(CockroachStore, name), "__wrapped__")] == []
    assert repeat_verbs.__doc__
