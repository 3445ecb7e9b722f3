from __future__ import annotations

import asyncio
from typing import cast

import pytest
from pydantic import SecretStr

from astha.errors import ConfigError
from astha.subscribers import ComponentContext, LakeSettings
from astha.subscribers.loader import load_component
from astha.testing import ManualClock
from components.lib.lake.storage.objects import Objects
from components.metadata_orchestrator.maintenance import Maintenance
from components.metadata_orchestrator.settings import OrchestratorSettings
from registry.contract import PAGE, MetadataStore
from registry.errors import Unavailable
from registry.forwarding import ForwardingStore
from registry.models import LakeTable, UploadIntent


class Unreachable(ForwardingStore):
    def __init__(self) -> None:
        super().__init__(cast("MetadataStore", None))
        self.asked: list[int] = []

    async def claim_stale_intents(self, older_than_ms: int, *, owner: str, limit: int = PAGE) -> list[UploadIntent]:
        self.asked.append(older_than_ms)
        raise Unavailable("no server")

    async def list_tables(self, database: str | None = None) -> list[LakeTable]:
        raise Unavailable("no server")


async def test_the_first_round_runs_at_once_and_a_failed_step_does_not_stop_it() -> None:
    store, clock = Unreachable(), ManualClock()
    settings = OrchestratorSettings(maintenance_every_s=60)
    maintenance = Maintenance(store, Objects(LakeSettings()), clock, settings, 2.0)
    others = 0

    async def other() -> None:
        nonlocal others
        others += 1

    task = asyncio.create_task(maintenance.run(other))
    await clock.advance(0)
    assert (others, store.asked, maintenance.statistics.failures) == (1, [2_000], 2)
    await clock.advance(59)
    assert maintenance.statistics.rounds == 1
    await clock.advance(2)
    assert maintenance.statistics.rounds == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("name", ["metadata_orchestrator", "snapshotter", "segment_store"])
def test_components_share_one_threshold_for_stale_uploads(name: str) -> None:
    around = ComponentContext(
        cast("MetadataStore", None), ManualClock(), SecretStr("sqlite:///registry.db"), LakeSettings()
    )
    with pytest.raises(ConfigError, match="intents_stale_after_s"):
        load_component(name, {"intents_stale_after_s": 5}, around)


def test_unknown_settings_are_refused() -> None:
    around = ComponentContext(
        cast("MetadataStore", None), ManualClock(), SecretStr("sqlite:///registry.db"), LakeSettings()
    )
    with pytest.raises(ConfigError, match="maintenance_every"):
        load_component("metadata_orchestrator", {"maintenance_every": 5}, around)
