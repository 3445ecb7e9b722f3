from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from astha.events.stream_records import GapRecord, HeartbeatRecord, TransactionRecord, decode_record, transaction_of
from astha.subscribers import (
    Commit,
    ComponentState,
    ConsistentRead,
    Event,
    MetadataStore,
    Operation,
    Position,
    Retry,
    Row,
    Topic,
)
from components.lib import transaction_stream
from components.lib.transaction_stream import TransactionStream
from registry.json_text import JsonText
from registry.position import XidVisibility
from tests.doubles.identity_store import IdentityStore

TABLES = frozenset({"topics"})


def _stream(store: IdentityStore) -> TransactionStream:
    return TransactionStream(cast("MetadataStore", store), "mqtt_sink", "astha", TABLES)


def _commit(transaction: int, position: int, count: int = 1) -> list[Event[Row]]:
    commit = Commit(transaction, Position(position), 5, count)
    rows = [Topic(f"topic-{number}", 1, None, JsonText("{}"), 1, 2) for number in range(count)]
    return [Event(Operation.INSERT, row, None, commit, index) for index, row in enumerate(rows)]


async def _opened(store: IdentityStore, position: int = 90, epoch: int = 7) -> TransactionStream:
    stream = _stream(store)
    await stream.open()
    stream.resume_at(Position(position), epoch)
    return stream


async def test_a_record_names_the_position_before_it() -> None:
    stream = await _opened(IdentityStore())
    message = await stream.encode(_commit(1, 95), Position(90), 10_000)
    record = decode_record(message.payload)
    assert (message.kind, message.previous, message.position) == ("transaction", 90, 95)
    assert (record.previous, record.position, record.epoch, record.covers) == (90, 95, 7, ("topics",))


async def test_the_history_survives_the_process_and_changes_with_a_refresh() -> None:
    store = IdentityStore()
    first = decode_record((await (await _opened(store)).encode(_commit(1, 95), Position(90), 10_000)).payload)
    again = await _opened(store)
    second = decode_record((await again.encode(_commit(1, 95), Position(90), 10_000)).payload)
    gap = decode_record((await again.begin_history("a refresh")).payload)
    assert first.history == second.history != gap.history
    assert isinstance(gap, GapRecord)
    assert (gap.previous, gap.position, gap.reason) == (90, 90, "a refresh")
    assert store.identities == {"transactions:astha:mqtt_sink": gap.history}


async def test_the_registry_knows_a_history_before_its_gap_is_sent() -> None:
    store = IdentityStore()
    stream = await _opened(store)

    async def fail(name: str, identity: str) -> None:
        raise ConnectionError("the registry is gone")

    store.record_source_identity = fail  # type: ignore[method-assign]  # it fails once
    with pytest.raises(ConnectionError):
        await stream.begin_history("a refresh")
    assert await stream.heartbeat() is None  # the next refresh begins another history


@pytest.mark.parametrize("count", [1, 199, 200, 201, 500])
async def test_a_commit_that_is_too_large_names_its_tables(count: int) -> None:
    stream = await _opened(IdentityStore())
    events = _commit(1, 95, count)
    whole = decode_record((await stream.encode(events, Position(90), 10_000_000)).payload)
    exact = (await stream.encode(events, Position(90), 10_000_000)).payload
    fits = (await stream.encode(events, Position(90), len(exact))).payload
    large = decode_record((await stream.encode(events, Position(90), len(exact) - 1)).payload)
    assert isinstance(whole, TransactionRecord)
    assert isinstance(large, TransactionRecord)
    assert transaction_of(whole, TABLES, 0).events == events
    assert fits == exact
    assert (list(large.events), large.unlisted, large.position) == ([], ("topics",), 95)


async def test_a_heartbeat_waits_until_every_commit_is_visible() -> None:
    store = IdentityStore()
    stream = await _opened(store)
    stream.acknowledged(_commit(41, 95)[0].commit)
    stream.acknowledged(_commit(40, 96)[0].commit)
    store.visibility = XidVisibility(42, frozenset({41}))
    assert await stream.heartbeat() is None
    store.visibility = XidVisibility(43, frozenset({42}))
    message = await stream.heartbeat()
    assert message is not None
    record = decode_record(message.payload)
    assert isinstance(record, HeartbeatRecord)
    assert (record.position, record.epoch) == (96, 7)
    reads = store.reads
    assert await stream.heartbeat() is not None
    assert store.reads == reads  # nothing new to confirm


async def test_no_heartbeat_before_the_position_is_known() -> None:
    stream = _stream(IdentityStore())
    await stream.open()
    assert await stream.heartbeat() is None


async def test_no_heartbeat_between_a_refresh_and_its_gap() -> None:
    stream = await _opened(IdentityStore())
    gap = await stream.begin_history("a refresh")
    assert await stream.heartbeat() is None
    stream.history_begun(gap)
    message = await stream.heartbeat()
    assert message is not None
    assert decode_record(message.payload).history == decode_record(gap.payload).history


async def test_a_heartbeat_that_began_before_a_refresh_is_not_sent() -> None:
    store = IdentityStore()
    stream = await _opened(store)
    stream.acknowledged(_commit(41, 95)[0].commit)
    original = store.consistent_read

    @asynccontextmanager
    async def refreshing(tables: Iterable[str] = ()) -> AsyncIterator[ConsistentRead]:
        async with original() as snapshot:
            stream.resume_at(Position(200), 7)
            stream.history_begun(await stream.begin_history("a refresh"))
            yield snapshot

    store.consistent_read = refreshing  # type: ignore[method-assign]  # a refresh begins meanwhile
    assert await stream.heartbeat() is None


async def test_commits_that_wait_for_confirmation_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_stream, "_MAX_UNCONFIRMED", 2)
    stream = await _opened(IdentityStore())
    stream.acknowledged(_commit(1, 95)[0].commit)
    stream.require_room()
    stream.acknowledged(_commit(2, 96)[0].commit)
    with pytest.raises(Retry, match="registry does not respond"):
        stream.require_room()


async def test_a_heartbeat_says_how_far_the_stream_has_come_beyond_the_last_commit() -> None:
    states = [
        ComponentState("mqtt_sink", "live", None, Position(130)),
        ComponentState("o", "live", None, Position(999)),
    ]
    stream = TransactionStream(cast("MetadataStore", IdentityStore()), "mqtt_sink", "astha", TABLES, lambda: states)
    await stream.open()
    stream.resume_at(Position(90), 7)
    message = await stream.heartbeat()
    assert message is not None
    record = decode_record(message.payload)
    assert (record.previous, record.position) == (message.previous, message.position) == (90, 130)
