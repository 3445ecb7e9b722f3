"""Deliveries have a distance, so that commits that arrive meanwhile share a record batch and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from pydantic import SecretStr

from astha.events import Event
from astha.subscribers.context import ComponentContext, LakeSettings
from astha.testing import ManualClock
from components.kafka_sink.settings import KafkaSinkSettings
from components.kafka_sink.subscriber import KafkaSink
from registry.contract import MetadataStore
from registry.models import Row


class SlowBroker(KafkaSink):
    """Needs some time for each delivery."""

    def __init__(self, settings: KafkaSinkSettings, context: ComponentContext, seconds: float) -> None:
        super().__init__(settings, context)
        self.seconds = seconds

    async def _deliver(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        await self._clock.sleep(self.seconds)


class SteppingClock(ManualClock):
    """Moves on by what is slept."""

    async def sleep(self, seconds: float) -> None:
        await self.advance(seconds)


@pytest.mark.parametrize(
    ("broker_s", "interval_s", "whole_s"), [(0.001, 0.004, 0.004), (0.010, 0.004, 0.010), (0.001, 0, 0.001)]
)
async def test_time_of_a_delivery(broker_s: float, interval_s: float, whole_s: float) -> None:
    clock = SteppingClock()
    context = ComponentContext(
        cast("MetadataStore", None),
        clock,
        SecretStr("sqlite:///registry.db"),
        LakeSettings(),
        component="kafka_sink",
        tables=frozenset(),
    )
    settings = KafkaSinkSettings.model_validate({"bootstrap_servers": "localhost:1", "send_interval_s": interval_s})
    sink, began = SlowBroker(settings, context, broker_s), clock.monotonic()
    await sink.on_transactions([])
    assert clock.monotonic() - began == pytest.approx(whole_s)
    acknowledged = next(metric.value for metric in sink.metrics() if metric.name == "acknowledge_seconds")
    assert acknowledged == pytest.approx(broker_s), "the interval is not the broker's time"


@pytest.mark.parametrize(
    ("layout", "chosen", "interval_s"),
    [("tables", None, 0.004), ("transactions", None, 0), ("tables", 0, 0), ("transactions", 0.002, 0.002)],
)
def test_records_for_followers_are_not_delayed_unless_told_so(
    layout: str, chosen: float | None, interval_s: float
) -> None:
    settings = {"bootstrap_servers": "localhost:1", "layout": layout, "send_interval_s": chosen}
    assert KafkaSinkSettings.model_validate(settings).least_interval_s == interval_s
