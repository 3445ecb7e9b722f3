"""What a follower passes on of a chunk of records."""

from __future__ import annotations

from typing import cast

import pytest

from astha.clock import SystemLoopClock
from astha.events.stream_records import Sender, encode_gap, encode_heartbeat
from astha.sources.contract import Gap, Progress, Started
from astha.sources.follower import Follower
from registry.contract import MetadataStore
from registry.position import Position
from tests.doubles.identity_store import IdentityStore


@pytest.fixture
def follower() -> Follower:
    return Follower(cast("MetadataStore", IdentityStore()), "followers", frozenset({"topics"}), SystemLoopClock())


async def test_progress_of_an_earlier_history_does_not_follow_its_gap(follower: Follower) -> None:
    """A registry that was restored begins at lower positions: what follows must not count as passed."""
    first, second = Sender("astha", 1, "first", ("topics",)), Sender("astha", 1, "second", ("topics",))
    payloads = [
        encode_heartbeat(first, Position(100)),
        encode_heartbeat(first, Position(200), Position(100)),
        encode_gap(second, Position(10), "restored"),
    ]
    batches = [
        batch async for batch in follower.deliver((number, payload, None) for number, payload in enumerate(payloads))
    ]
    assert [type(batch) for batch in batches] == [Gap, Started, Gap, Started]
    assert batches[-1] == Started(Position(10))
    later = encode_heartbeat(second, Position(20), Position(10))
    assert [batch async for batch in follower.deliver([(3, later, None)])] == [Progress(Position(20))]
