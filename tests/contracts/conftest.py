from __future__ import annotations

from collections.abc import Awaitable, Iterator

import pytest

from registry.cache import CachedStore
from registry.contract import MetadataStore
from tests.contracts.bad_input import Refused, complaint
from tests.fixtures.databases import Backend
from tests.fixtures.stores import OpenStore
from tests.servers.cockroachdb import CockroachCluster

_QUICK_ON_SERIALIZABLE = {"test_agents", "test_inserts", "test_producers", "test_upload_intents"}
"""Modules that every run checks with CockroachDB's store over PostgreSQL, whose transactions are made to fail; `make
thorough` checks them all.
"""

_QUICK_ON_DYNAMODB = {"test_group_leases", "test_inserts", "test_producers", "test_topics"}
"""Modules that every run checks on DynamoDB; `make dynamodb` checks them all, and the cache."""

_QUICK_SOURCE_ON_DYNAMODB = {
    "test_a_commit_through_the_catalog_begins_with_its_marker",
    "test_a_reopened_stream_repeats_unacknowledged_transactions",
    "test_a_verb_is_one_transaction_over_all_its_tables",
    "test_updates_and_deletes_carry_the_row_before",
}
"""The same of the tests of its source."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves the cache over PostgreSQL to `make thorough`: the cache does not depend on what it is over."""
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if parameters.get("registry_url") == "dynamodb" and (
            item.name.partition("[")[0] not in _QUICK_SOURCE_ON_DYNAMODB or parameters.get("transport") != "direct"
        ):
            item.add_marker("long")
        backend, cached = parameters.get("backend"), parameters.get("store") == "cached"
        quick_on_dynamodb = item.path.stem in _QUICK_ON_DYNAMODB and not cached
        quick_on_serializable = item.path.stem in _QUICK_ON_SERIALIZABLE and not cached
        if (
            (backend == "postgres" and cached)
            or (backend == "dynamodb" and not quick_on_dynamodb)
            or (backend == "serializable" and not quick_on_serializable)
        ):
            item.add_marker("long")


@pytest.fixture(params=["sqlite", "postgres", "dynamodb", "serializable", *CockroachCluster.backends()])
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
