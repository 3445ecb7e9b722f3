from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from tests.integration.components.mqtt_sink.listener import Sinks

_numbers = itertools.count(1)


@pytest.fixture
def prefix() -> str:
    """The test's own topics on the shared broker."""
    return f"site/sink-{next(_numbers)}"


@pytest.fixture
async def sinks() -> AsyncIterator[Sinks]:
    made = Sinks()
    yield made
    await made.stop()
