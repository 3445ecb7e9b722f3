"""Commits on DynamoDB: killed at every request, repeated, met by others, and applied late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from registry.contract import MetadataStore
from registry.dynamodb_url import parse_endpoint
from registry.errors import AlreadyExists, Conflict, RegistryError
from registry.models import Partition, Segment, Topic
from registry.stores.dynamodb.changes import decode_changes
from registry.stores.dynamodb.client import Action, ConditionFailed, DynamoClient
from registry.stores.dynamodb.opening import open_registry
from registry.stores.dynamodb.staging import ANNOUNCEMENTS, chunk_key, remove_abandoned
from registry.stores.dynamodb.state import REGISTRY, State
from registry.stores.dynamodb.store import DynamoStore
from registry.stores.dynamodb.transaction import LOG, Transaction, apply
from tests.contracts.contents import contents
from tests.samples import segment

Write = Callable[..., Awaitable[None]]
MANY = 120
"""Segments of one call: with their pointers several transactions of DynamoDB."""


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
async def client(dynamodb_url: str) -> AsyncIterator[DynamoClient]:
    client = DynamoClient(parse_endpoint(dynamodb_url))
    yield client
    await client.close()


@pytest.fixture
async def store(dynamodb_url: str) -> AsyncIterator[DynamoStore]:
    store = await open_registry(dynamodb_url)
    yield store
    await store.close()


@pytest.fixture
async def victim(dynamodb_url: str) -> AsyncIterator[DynamoStore]:
    store = await open_registry(dynamodb_url)
    yield store
    await store.close()


def kill_after(store: DynamoStore, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's process ends before its next write once it has sent so many."""
    left = [writes]

    def limited(send: Write) -> Write:
        async def write(*args: Any, **named: Any) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            await send(*args, **named)

        return write

    for name in ("write_transaction", "put_many", "delete_many"):
        monkeypatch.setattr(store._client, name, limited(getattr(store._client, name)))


async def _shape(store: MetadataStore) -> tuple[int, int]:
    segments = await store.get_segments("orders", 0)
    (partition,) = await store.list_partitions("orders")
    assert partition.high_watermark == (segments[-1].end_offset + 1 if segments else 0)
    for one in {*segments[:1], *segments[-1:]}:
        assert await store.get_object_segments(one.s3_bucket, one.s3_key) == [one]
    return len(segments), partition.high_watermark


@pytest.mark.long
async def test_killed_at_any_write_a_large_commit_is_complete_or_absent(
    store: DynamoStore, dynamodb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create_topic("orders", 1)
    found, base = set(), 0
    for writes in range(11):
        victim = await open_registry(dynamodb_url)
        kill_after(victim, writes, monkeypatch)
        before = (await _shape(store))[0]
        drafts = [segment(base + 10 * number) for number in range(MANY)]
        with contextlib.suppress(Killed):
            await victim.add_segments(drafts)
        await victim.close()
        after = (await _shape(store))[0]
        assert after in (before, before + MANY)
        found.add(after - before)
        base += 10 * MANY * (after > before)
        assert len((await contents(store))["segments"]) == after
    assert found == {0, MANY}


async def test_a_pending_commit_is_never_seen_by_half(
    store: DynamoStore, victim: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed right after the commit, before or between its steps: the next reader of anything sees all of it."""
    await store.create_topic("orders", 1)
    kill_after(victim, 4, monkeypatch)  # the announcement, the chunk, the commit, one step
    with pytest.raises(Killed):
        await victim.add_segments([segment(10 * number) for number in range(MANY)])
    item = await store._client.get(REGISTRY.key)
    assert item is not None
    pending = State.of(item).pending
    assert pending is not None
    assert not await _expiries(store, pending), "what is still to be applied must stay"
    assert len(await store.get_segments("orders", 0)) == MANY
    assert len(await _expiries(store, pending)) == 1


async def _expiries(store: DynamoStore, transaction: str) -> list[str | int | bytes]:
    chunk = await store._client.get(chunk_key(transaction, 0))
    assert chunk is not None
    return [value for name, value in chunk.attributes.items() if name == "expires"]


async def test_who_applies_late_overwrites_nothing(
    store: DynamoStore, victim: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create_topic("orders", 1)
    kill_after(victim, 3, monkeypatch)
    with pytest.raises(Killed):
        await victim.add_segments([segment(10 * number) for number in range(MANY)])
    item = await store._client.get(REGISTRY.key)
    assert item is not None
    pending = State.of(item)
    await store.delete_topic("orders")
    await store.create_topic("orders", 1)
    before = await contents(store)
    await apply(store._client, REGISTRY, pending)
    assert await contents(store) == before


async def test_the_log_has_every_commit_once_and_in_order(store: DynamoStore, victim: DynamoStore) -> None:
    await store.create_topic("orders", 1)
    writers = [one.add_segment(segment(10 * number)) for number in range(12) for one in [(store, victim)[number % 2]]]
    await asyncio.gather(*writers)
    with pytest.raises(AlreadyExists):
        await store.create_topic("orders", 1)
    entries, _ = await store._client.query(LOG)
    assert [int(item.key[1].removeprefix("=")) for item in entries] == list(range(1, 14))
    watermark = 0
    for item in entries[1:]:
        body = item.attributes["body"]
        assert isinstance(body, bytes)
        changes = decode_changes(body)
        kinds = [change.kind for change in changes]
        assert kinds.count(Segment) == 1
        for change in changes:
            if change.kind is Partition:
                assert isinstance(change.before, Partition)
                assert isinstance(change.after, Partition)
                assert change.before.high_watermark == watermark
                watermark = change.after.high_watermark
    assert watermark == 120
    assert await store.position() == 13


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_lost_response_is_a_commit(store: DynamoStore, failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same request is sent again, with its token."""
    send, left = store._client.call, [failures]

    async def flaky(operation: str, **request: Any) -> Any:
        return await send(operation, **request)

    monkeypatch.setattr(store._client, "call", flaky)
    raw = await store._client._connected()
    transact = raw.transact_write_items

    async def lost(**request: Any) -> Any:
        done = await transact(**request)
        if left[0]:
            left[0] -= 1
            raise EndpointConnectionError(endpoint_url="http://lost")
        return done

    monkeypatch.setattr(raw, "transact_write_items", lost)
    await store.create_topic("orders", 2)
    assert await store.position() == 1
    assert len(await store.list_partitions("orders")) == 2


async def test_a_server_without_memory_of_tokens_is_asked_for_the_commit(
    store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = store._client.write_transaction

    async def repeated(actions: Sequence[Action], **named: Any) -> None:
        await send(actions, **named)
        raise ConditionFailed  # the repetition meets its own commit

    monkeypatch.setattr(store._client, "write_transaction", repeated)
    topic = await store.create_topic("orders", 1)
    assert await store.list_topics() == [topic]
    assert await store.position() == 1


async def test_throttled_requests_are_repeated(store: DynamoStore, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = await store._client._connected()
    send, left = raw.get_item, [3]

    async def throttled(**request: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise ClientError({"Error": {"Code": "ProvisionedThroughputExceededException"}}, "GetItem")
        return await send(**request)

    monkeypatch.setattr(raw, "get_item", throttled)
    assert await store.get_topic("orders") is None
    assert left == [0]


async def test_a_row_larger_than_an_item_is_refused(store: DynamoStore) -> None:
    with pytest.raises(RegistryError, match="item"):
        await store.create_topic("orders", 1, config={"note": "".join(chr(97 + n % 26) for n in range(500_000))})
    assert await store.list_topics() == []


async def test_paths_longer_than_keys_are_kept_apart(store: DynamoStore) -> None:
    paths = sorted("p" * 2_000 + tail for tail in ("a", "b", "c"))
    await store.record_intents(paths, purpose="insert", owner="w")
    assert sorted(row.path for row in await store.list_stale_intents(0)) == paths
    await store.complete_intents(paths[:1])
    assert {row.path for row in await store.list_stale_intents(0)} == set(paths[1:])


async def test_a_dead_loaders_lock_is_broken(
    store: DynamoStore, victim: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.stores.dynamodb.base._DEAD_LOCK_S", 0.2)
    loading = victim.load()
    load = await loading.__aenter__()
    await load.add([Topic("lost", 1, None, "{}", 1, 1)])  # type: ignore[arg-type]
    monkeypatch.setattr("registry.stores.dynamodb.load._RENEWED_EVERY_S", 1_000.0)
    await store.create_topic("orders", 1)
    with pytest.raises(Conflict, match="lock was lost"):
        await loading.__aexit__(None, None, None)
    assert [topic.name for topic in await store.list_topics()] == ["orders"]


@pytest.mark.long
async def test_chunks_of_a_writer_that_died_before_its_commit_are_removed(
    store: DynamoStore, victim: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create_topic("orders", 1)
    kill_after(victim, 2, monkeypatch)
    with pytest.raises(Killed):
        await victim.add_segments([segment(10 * number) for number in range(MANY)])
    ((left,), _) = await store._client.query(ANNOUNCEMENTS)
    chunks = chunk_key(str(left.attributes["tx"]), 0)[0]
    await store.add_segments([segment(10 * number) for number in range(MANY)])
    assert len((await store._client.query(chunks))[0]) == 1, "its writer may be alive"
    monkeypatch.setattr("registry.stores.dynamodb.staging._ABANDONED_AFTER_MS", 0)
    await store.add_segments([segment(10 * number) for number in range(MANY, 2 * MANY)])
    assert (await store._client.query(ANNOUNCEMENTS))[0] == []
    assert (await store._client.query(chunks))[0] == []
    assert len(await store.get_segments("orders", 0)) == 2 * MANY


@pytest.mark.long
async def test_a_writer_whose_chunks_were_removed_writes_them_again(
    store: DynamoStore, victim: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was only slow: its first commit fails, and nothing is half."""
    await store.create_topic("orders", 1)
    commit, seen = Transaction._committed, list[bool]()

    async def slow(self: Transaction, actions: Sequence[Action], following: State) -> bool:
        if not seen:
            monkeypatch.setattr("registry.stores.dynamodb.staging._ABANDONED_AFTER_MS", 0)
            await remove_abandoned(store._client)
            monkeypatch.setattr("registry.stores.dynamodb.staging._ABANDONED_AFTER_MS", 1 << 40)
        seen.append(await commit(self, actions, following))
        return seen[-1]

    monkeypatch.setattr(Transaction, "_committed", slow)
    await victim.add_segments([segment(10 * number) for number in range(MANY)])
    assert seen == [False, True]
    assert len(await store.get_segments("orders", 0)) == MANY
