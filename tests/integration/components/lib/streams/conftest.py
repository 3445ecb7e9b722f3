"""The harness, for every test here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from registry.contract import MetadataStore
from registry.position import Position
from tests.integration.components.lib.streams.harness import TOPIC, StreamHarness


@pytest.fixture
async def harness(store: MetadataStore, warehouse: Path) -> AsyncIterator[StreamHarness]:
    await store.create_topic(TOPIC, 3)
    made = StreamHarness(store, warehouse / "objects")
    made.change_feed.resume(Position(1))
    yield made
    await made.reader.cache.close()
    await made.cached.index.close()
