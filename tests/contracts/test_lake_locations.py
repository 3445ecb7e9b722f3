"""The locations of the lake: recorded once, the same for all callers, changed only on purpose."""

from __future__ import annotations

import asyncio

from registry.contract import MetadataStore
from tests.contracts.bad_input import Refused
from tests.fixtures.stores import OpenStore


async def test_the_first_caller_decides_and_all_get_the_same(store: MetadataStore, url: str, opened: OpenStore) -> None:
    assert await store.get_lake_locations() == {}
    others = [store, await opened(url), await opened(url)]
    found = await asyncio.gather(
        *(one.ensure_lake_locations({"warehouse": f"s3://lake/{number}"}) for number, one in enumerate(others))
    )
    assert found[0] == found[1] == found[2] == await store.get_lake_locations()
    later = await store.ensure_lake_locations({"warehouse": "s3://lake/later", "streams": "s3://lake/streams"})
    assert later == {**found[0], "streams": "s3://lake/streams"}


async def test_a_recorded_location_is_replaced(store: MetadataStore) -> None:
    await store.ensure_lake_locations({"warehouse": "s3://lake/a", "streams": "s3://lake/a/streams"})
    await store.record_lake_locations({"warehouse": "s3://lake/b"})
    assert await store.get_lake_locations() == {"warehouse": "s3://lake/b", "streams": "s3://lake/a/streams"}


async def test_other_names_and_empty_locations_are_refused(store: MetadataStore, refused: Refused) -> None:
    await refused(store.record_lake_locations({"elsewhere": "s3://lake"}), "name", "elsewhere")  # type: ignore[dict-item]
    await refused(store.ensure_lake_locations({"warehouse": ""}), "location", "")
    assert await store.get_lake_locations() == {}
