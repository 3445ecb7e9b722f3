from __future__ import annotations

import pytest

from components.commands.catalog.security import login_limit
from components.commands.catalog.security.login_limit import BURST, LoginLimit
from tests.unit.components.commands.catalog.security.test_tokens import Clock

ADDRESS = "192.0.2.1"


def fail(limit: LoginLimit, times: int, address: str = ADDRESS, client: str = "spark") -> None:
    for _ in range(times):
        limit.failed(address, client)


def test_failures_beyond_a_burst_have_to_wait_and_are_forgotten() -> None:
    clock = Clock()
    limit = LoginLimit(clock)
    fail(limit, BURST - 1)
    assert limit.wait_s(ADDRESS, "spark") == 0
    fail(limit, 1)
    assert limit.wait_s(ADDRESS, "spark") == 1
    clock.now += 1
    assert limit.wait_s(ADDRESS, "spark") == 0
    fail(limit, 1)
    assert limit.wait_s(ADDRESS, "spark") == 1
    clock.now += BURST
    fail(limit, BURST - 1)
    assert limit.wait_s(ADDRESS, "spark") == 0


def test_other_addresses_and_clients_do_not_wait() -> None:
    limit = LoginLimit(Clock())
    fail(limit, BURST)
    assert limit.wait_s("192.0.2.2", "spark") == limit.wait_s(ADDRESS, "trino") == 0
    assert limit.wait_s("::ffff:192.0.2.2", "spark") == 0


def test_the_ipv6_addresses_of_one_host_count_together() -> None:
    limit = LoginLimit(Clock())
    fail(limit, BURST, "2001:db8::1")
    assert limit.wait_s("2001:db8::ffff:1", "spark") == 1
    assert limit.wait_s("2001:db8:0:1::1", "spark") == 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_limit, "_MAX_CALLERS", 3)
    limit = LoginLimit(Clock())
    fail(limit, BURST)
    for number in range(3):
        fail(limit, 1, f"198.51.100.{number}")
    assert limit.wait_s(ADDRESS, "spark") == 0
