from __future__ import annotations

from pathlib import Path

import pytest

from registry.contract import MetadataStore
from tests.integration.components.compactor.harness import Bench


@pytest.fixture
async def bench(store: MetadataStore, warehouse: Path) -> Bench:
    made = Bench(store, warehouse)
    await made.create()
    return made
