from __future__ import annotations

from collections.abc import Awaitable, Iterator

import pytest

from registry.cache import CachedStore
from registry.contract import MetadataStore
from tests.contracts.bad_input import Refused, complaint
from tests.fixtures.databases import Backend
from tests.fixtures.stores import OpenStore


@pytest.fixture(params=["sqlite", "postgres", "dynamodb"])
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen: Backend = request.param
    return chosen


@pytest.fixture(params=["plain", "cached"])
async def store(request: pytest.FixtureRequest, url: str, opened: OpenStore) -> MetadataStore:
    """Every backend, and the cache over each."""
    plain = await opened(url)
    return CachedStore(plain) if request.param == "cached" else plain


@pytest.fixture
def refused() -> Iterator[Refused]:
    """Collects complaints, so that one run shows everything that a verb wrongly accepts."""
    complaints: list[str] = []

    async def expect(call: Awaitable[object], field: str, value: object) -> None:
        if found := await complaint(call, field, value):
            complaints.append(found)

    yield expect
    assert not complaints, "\n".join(complaints)


_QUICK_ON_DYNAMODB = {"test_group_leases", "test_inserts", "test_producers", "test_topics"}
"""Modules that every run checks on DynamoDB; `make dynamodb` checks them all, and the cache."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "dynamodb" in item.name and "contracts" in item.path.parts:
            if item.path.stem in _QUICK_ON_DYNAMODB and "plain" in item.name:
                continue
            item.add_marker(pytest.mark.long)
