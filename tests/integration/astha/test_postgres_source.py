"""The PostgreSQL source against failures of servers, slots and connections."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from astha.clock import SystemLoopClock
from astha.errors import ConfigError
from astha.sources.postgres.source import PostgresSource
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.models import ConsumerGroup, Topic
from registry.position import Position
from tests.doubles.proxy import PostgresProxy
from tests.faults.oracle import drop_slot
from tests.fixtures.servers import MakeServer, ask, require_version
from tests.fixtures.sources import EVERYTHING, SourceReader, busy_server, postgres_settings, release_slot, slot_of
from tests.fixtures.stores import OpenStore
from tests.waiting import eventually


@asynccontextmanager
async def following(
    url: str, store: MetadataStore, stream_url: str | None = None, **settings: Any
) -> AsyncIterator[SourceReader]:
    source = PostgresSource(stream_url or url, store, postgres_settings(url, **settings), SystemLoopClock())
    async with SourceReader(source) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        yield reader


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def groups(reader: SourceReader) -> list[str]:
    return [event.data.group_id for event in reader.events if isinstance(event.data, ConsumerGroup)]


async def written(url: str, *names: str) -> None:
    """Each in a transaction of its own."""
    statements = [f"INSERT INTO consumer_groups VALUES ('{name}', 0, 0)" for name in names]
    await asyncio.to_thread(execute, url, *statements)


@pytest.fixture
async def store(postgres_url: str, opened: OpenStore) -> AsyncIterator[MetadataStore]:
    yield await opened(postgres_url)
    await asyncio.to_thread(release_slot, postgres_url)


async def test_the_first_start_is_a_gap_and_the_second_is_not(postgres_url: str, store: MetadataStore) -> None:
    async with following(postgres_url, store) as first:
        assert first.gaps == ["first start on this registry"]
        await written(postgres_url, "a")
        await first.until(lambda: groups(first) == ["a"], "the commit")
    async with following(postgres_url, store) as second:
        assert second.gaps == []
        await second.until(lambda: groups(second) == ["a"], "what was not acknowledged, again")


async def test_a_gap_that_was_not_consumed_is_found_again(postgres_url: str, store: MetadataStore) -> None:
    """Killed between the gap and the moment at which every pending refresh is persisted."""
    source = PostgresSource(postgres_url, store, postgres_settings(postgres_url), SystemLoopClock())
    stream = source.stream(EVERYTHING)
    assert (await anext(stream)) is not None
    await stream.aclose()
    async with following(postgres_url, store) as reader:
        assert reader.gaps == ["first start on this registry"]


async def test_a_server_that_is_killed_and_restarted(own_server: EmbeddedPostgres, opened: OpenStore) -> None:
    url = own_server.url("postgres")
    async with following(url, await opened(url)) as reader:
        for number in range(3):
            await written(url, f"before {number}")
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.start)
            await written(url, f"after {number}")
            await reader.until(lambda n=number: f"after {n}" in groups(reader), "the stream")  # type: ignore[misc]
        assert len(reader.gaps) == 1, "of the first start only"
    wanted = [name for number in range(3) for name in (f"before {number}", f"after {number}")]
    assert list(dict.fromkeys(groups(reader))) == wanted, "nothing lost, some of it twice"


async def test_a_server_restored_from_an_older_copy_of_itself(own_server: EmbeddedPostgres, opened: OpenStore) -> None:
    """Restored from a snapshot of its volume: system identifier and timeline are the same, the history is not."""
    url = own_server.url("postgres")
    async with following(url, await opened(url)) as reader:
        await written(url, "kept")
        await reader.until(lambda: "kept" in groups(reader), "the stream")
        await asyncio.to_thread(own_server.kill)
        copy = own_server.data.with_name("copy")
        await asyncio.to_thread(shutil.copytree, own_server.data, copy)
        await asyncio.to_thread(own_server.start)
        await written(url, *(f"undone {number}" for number in range(50)))
        await reader.until(lambda: "undone 49" in groups(reader), "the stream")
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(shutil.rmtree, own_server.data)
        copy.rename(own_server.data)
        own_server.hand_over(own_server.data)
        await asyncio.to_thread(own_server.start)
        await reader.until(lambda: len(reader.gaps) == 2, "the gap")
        assert "it was restored" in reader.gaps[1]
        await written(url, "after")
        await reader.until(lambda: "after" in groups(reader), "the stream")


async def test_a_connection_that_is_cut(postgres_url: str, postgres: EmbeddedPostgres, store: MetadataStore) -> None:
    async with (
        PostgresProxy("127.0.0.1", postgres.port) as proxy,
        following(postgres_url, store, proxy.url(postgres_url)) as reader,
    ):
        for number in range(5):
            proxy.cut()
            await written(postgres_url, f"g{number}")
            await reader.until(lambda n=number: f"g{n}" in groups(reader), "the stream")  # type: ignore[misc]
        assert len(reader.gaps) == 1


async def test_a_connection_that_goes_deaf(postgres_url: str, postgres: EmbeddedPostgres, store: MetadataStore) -> None:
    async with PostgresProxy("127.0.0.1", postgres.port) as proxy:
        limits = {"silence_limit_s": 0.5, "connect_timeout_s": 1.0}
        async with following(postgres_url, store, proxy.url(postgres_url), **limits) as reader:
            proxy.go_deaf()
            await written(postgres_url, "unheard")
            await eventually(lambda: not reader.source.status().connected, "the silence noticed")
            proxy.listen()
            await reader.until(lambda: "unheard" in groups(reader), "the stream")
            assert len(reader.gaps) == 1


async def test_a_server_that_refuses_for_a_while(
    postgres_url: str, postgres: EmbeddedPostgres, store: MetadataStore
) -> None:
    async with (
        PostgresProxy("127.0.0.1", postgres.port) as proxy,
        following(postgres_url, store, proxy.url(postgres_url)) as reader,
    ):
        proxy.refuse()
        await written(postgres_url, "meanwhile")
        refused = proxy.connections
        await eventually(lambda: not reader.source.status().connected, "the loss noticed")
        await eventually(lambda: "connect" in (reader.source.status().detail or ""), "an attempt refused")
        assert proxy.connections == refused
        proxy.accept()
        await reader.until(lambda: "meanwhile" in groups(reader), "the stream")


async def test_a_slot_dropped_while_streaming(postgres_url: str, store: MetadataStore) -> None:
    async with following(postgres_url, store) as reader:
        await written(postgres_url, "before")
        await reader.until(lambda: "before" in groups(reader), "the stream")
        await asyncio.to_thread(drop_slot, postgres_url, slot_of(postgres_url))
        await reader.until(lambda: len(reader.gaps) == 2, "the gap")
        assert "does not exist" in reader.gaps[1]
        await reader.until(lambda: len(reader.starts) == 2, "the new start")
        await written(postgres_url, "after")
        await reader.until(lambda: "after" in groups(reader), "the stream")


async def test_a_slot_that_was_invalidated(make_server: MakeServer, opened: OpenStore) -> None:
    """Another client wrote more WAL than the server may retain for the slot."""
    server = make_server({"max_slot_wal_keep_size": "1MB", "wal_keep_size": 0, "min_wal_size": "32MB"})
    url = server.url("postgres")
    store = await opened(url)
    async with following(url, store):
        await written(url, "before")
    await asyncio.to_thread(release_slot, url)

    def invalidate() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE noise (t text)")
            for _ in range(20):
                connection.execute("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 2000)")
                connection.execute("SELECT pg_switch_wal()")
                connection.execute("CHECKPOINT")
                (status,) = connection.execute("SELECT wal_status FROM pg_replication_slots").fetchone() or ("",)
                if status == "lost":
                    return
        raise AssertionError("the slot survived")

    await asyncio.to_thread(invalidate)
    async with following(url, store) as reader:
        assert "invalidated" in reader.gaps[0]
        await written(url, "after")
        await reader.until(lambda: "after" in groups(reader), "the stream")


async def test_a_slot_that_was_idle_for_too_long(make_server: MakeServer, opened: OpenStore) -> None:
    server = await asyncio.to_thread(make_server)
    await asyncio.to_thread(require_version, server, 18, "idle_replication_slot_timeout")
    url = server.url("postgres")
    store = await opened(url)
    async with following(url, store):
        await written(url, "before")
    await asyncio.to_thread(release_slot, url)
    await asyncio.to_thread(execute, url, "ALTER SYSTEM SET idle_replication_slot_timeout = '1s'")
    await asyncio.to_thread(execute, url, "SELECT pg_reload_conf()")

    async def lost() -> bool:
        await asyncio.to_thread(execute, url, "CHECKPOINT")
        return bool(await asyncio.to_thread(ask, server, "SELECT wal_status = 'lost' FROM pg_replication_slots"))

    await eventually(lost, "the slot given up")
    async with following(url, store) as reader:
        assert "idle_timeout" in reader.gaps[0]
        await written(url, "after")
        await reader.until(lambda: "after" in groups(reader), "the stream")


async def test_a_missing_publication_is_a_config_error(postgres_url: str, store: MetadataStore) -> None:
    await asyncio.to_thread(execute, postgres_url, "DROP PUBLICATION astha")
    source = PostgresSource(postgres_url, store, postgres_settings(postgres_url), SystemLoopClock())
    with pytest.raises(ConfigError, match="migrate"):
        await anext(source.stream(EVERYTHING))


async def test_a_publication_dropped_while_streaming_ends_the_stream_with_the_remedy(
    postgres_url: str, store: MetadataStore
) -> None:
    source = PostgresSource(postgres_url, store, postgres_settings(postgres_url), SystemLoopClock())
    reader = SourceReader(source)
    await reader.until(lambda: bool(reader.starts), "the start")
    await asyncio.to_thread(execute, postgres_url, "DROP PUBLICATION astha")
    await written(postgres_url, "a")
    with pytest.raises(ConfigError, match="publication"):
        await asyncio.wait_for(reader._task, 60)
    await source.close()


async def test_changes_made_without_a_publication_are_a_gap(postgres_url: str, store: MetadataStore) -> None:
    """The slot can't bring it, however often it is asked: not before the publication comes back, nor after."""
    async with following(postgres_url, store):
        pass
    await asyncio.to_thread(release_slot, postgres_url)
    await asyncio.to_thread(execute, postgres_url, "DROP PUBLICATION astha")
    await written(postgres_url, "unpublished")
    await asyncio.to_thread(
        execute, postgres_url, f"CREATE PUBLICATION astha FOR TABLE {', '.join(sorted(EVERYTHING))}"
    )
    async with following(postgres_url, store) as reader:
        await reader.until(lambda: bool(reader.gaps), "the gap")
        assert "not published" in reader.gaps[0]
        await reader.until(lambda: len(reader.starts) == 2, "the new start")
        await written(postgres_url, "after")
        await reader.until(lambda: groups(reader) == ["after"], "the stream")
        assert len(reader.gaps) == 1


async def test_a_slot_of_another_plugin_is_a_config_error(postgres_url: str, store: MetadataStore) -> None:
    slot = slot_of(postgres_url)
    await asyncio.to_thread(
        execute, postgres_url, f"SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"
    )
    source = PostgresSource(postgres_url, store, postgres_settings(postgres_url), SystemLoopClock())
    with pytest.raises(ConfigError, match="test_decoding"):
        await anext(source.stream(EVERYTHING))


async def test_a_slot_that_another_group_reads_is_a_config_error(postgres_url: str, store: MetadataStore) -> None:
    first = PostgresSource(postgres_url, store, postgres_settings(postgres_url), SystemLoopClock(), "first")
    second = PostgresSource(postgres_url, store, postgres_settings(postgres_url), SystemLoopClock(), "second")
    async with SourceReader(first) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        with pytest.raises(ConfigError, match=r"in use by group first: .* set source\.slot of group second"):
            await anext(second.stream(EVERYTHING))
        await written(postgres_url, "a")
        await reader.until(lambda: groups(reader) == ["a"], "the stream, undisturbed")
    async with SourceReader(second) as reader:  # nothing reads the slot any more
        await reader.until(lambda: bool(reader.starts), "the start")


async def test_another_identity_is_a_gap(postgres_url: str, store: MetadataStore) -> None:
    """A dump restored into another server brings the ledger of the old one along."""
    async with following(postgres_url, store):
        pass
    await store.record_source_identity(slot_of(postgres_url), "1234567/1")
    async with following(postgres_url, store) as reader:
        assert "1234567/1" in reader.gaps[0]
    async with following(postgres_url, store) as reader:
        assert reader.gaps == []


async def test_an_acknowledgement_of_another_history_is_not_sent_to_the_server(
    postgres_url: str, store: MetadataStore
) -> None:
    """Acknowledged without a connection, or between the gap and the new start."""
    async with following(postgres_url, store):
        pass
    await store.record_source_identity(slot_of(postgres_url), "1234567/1")
    source = PostgresSource(postgres_url, store, postgres_settings(postgres_url), SystemLoopClock())
    far = Position(1 << 60)
    source.acknowledge(far)
    async with SourceReader(source) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        assert reader.starts[0] < far
        await written(postgres_url, "a")
        await reader.until(lambda: groups(reader) == ["a"], "the stream")
        assert source.status().acknowledged < far


async def test_a_slot_that_a_frozen_daemon_still_reads(postgres_url: str, store: MetadataStore) -> None:
    """Its lease has run out, so we lead: the server would keep the slot for it for another minute."""
    old = PostgresSource(postgres_url, store, postgres_settings(postgres_url), SystemLoopClock())
    stream = old.stream(EVERYTHING)
    await anext(stream)
    async with following(postgres_url, store) as second:
        await written(postgres_url, "a")
        await second.until(lambda: "a" in groups(second), "the stream")
    await stream.aclose()


async def test_an_idle_publication_on_a_busy_server_advances(postgres_url: str, store: MetadataStore) -> None:
    async with busy_server(postgres_url), following(postgres_url, store) as reader:
        source = reader.source
        start = reader.reached
        await reader.until(lambda: reader.reached > start + 1_000, "progress")
        source.acknowledge(reader.reached)
        wanted = source.status().acknowledged

        def confirmed() -> bool:
            with psycopg.connect(postgres_url) as connection:
                query = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
                (lsn,) = connection.execute(query, [slot_of(postgres_url)]).fetchone() or (0,)
                return int(lsn) >= wanted

        await eventually(lambda: asyncio.to_thread(confirmed), "the slot's own advance")
    assert reader.transactions == []


async def test_a_large_value_that_an_update_does_not_change(postgres_url: str, store: MetadataStore) -> None:
    """A megabyte, TOASTed: the server sends it with the old row only."""
    async with following(postgres_url, store) as reader:
        large = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(400_000))
        created = await store.create_topic("t", 1, config={"large": large})
        await asyncio.to_thread(execute, postgres_url, "UPDATE topics SET retention_ms = 5 WHERE name = 't'")
        await reader.until(lambda: len(reader.transactions) == 2, "both")
    (event,) = reader.transactions[1].events
    assert isinstance(event.data, Topic)
    assert event.data.config == created.config
    assert event.before == created
    assert event.data.retention_ms == 5


async def test_a_column_added_while_streaming_is_ignored(postgres_url: str, store: MetadataStore) -> None:
    async with following(postgres_url, store) as reader:
        await written(postgres_url, "before")
        await asyncio.to_thread(
            execute, postgres_url, "ALTER TABLE consumer_groups ADD COLUMN added uuid DEFAULT gen_random_uuid()"
        )
        await written(postgres_url, "after")
        await reader.until(lambda: "after" in groups(reader), "the stream")
        await asyncio.to_thread(execute, postgres_url, "UPDATE consumer_groups SET updated_at = 9")
        await reader.until(lambda: len(reader.transactions) == 3, "the update")
    assert {event.data.updated_at for event in reader.transactions[2].events} == {9}  # type: ignore[attr-defined]
    assert len(reader.gaps) == 1


async def test_a_column_dropped_while_streaming_is_a_config_error(postgres_url: str, store: MetadataStore) -> None:
    source = PostgresSource(postgres_url, store, postgres_settings(postgres_url), SystemLoopClock())
    reader = SourceReader(source)
    await reader.until(lambda: bool(reader.starts), "the start")
    await asyncio.to_thread(
        execute,
        postgres_url,
        "ALTER TABLE consumer_groups DROP COLUMN updated_at",
        "INSERT INTO consumer_groups VALUES ('a', 0)",
    )
    with pytest.raises(ConfigError, match="updated_at"):
        await asyncio.wait_for(reader._task, 60)
    await source.close()


async def test_a_table_that_lost_its_full_identity_causes_refreshes_until_it_is_restored(
    postgres_url: str, store: MetadataStore
) -> None:
    async with following(postgres_url, store) as reader:
        await written(postgres_url, "a")
        await asyncio.to_thread(
            execute,
            postgres_url,
            "ALTER TABLE consumer_groups REPLICA IDENTITY DEFAULT",
            "UPDATE consumer_groups SET updated_at = 1",
            "ALTER TABLE consumer_groups REPLICA IDENTITY FULL",
            "UPDATE consumer_groups SET updated_at = 2",
        )
        await reader.until(lambda: len(reader.transactions) == 3, "all three")
    assert [bool(transaction.unlisted) for transaction in reader.transactions] == [False, True, False]


async def test_truncate_names_only_its_table(postgres_url: str, store: MetadataStore) -> None:
    async with following(postgres_url, store) as reader:
        await written(postgres_url, "a")
        await asyncio.to_thread(execute, postgres_url, "TRUNCATE consumer_groups CASCADE")
        await reader.until(lambda: len(reader.transactions) == 2, "both")
    assert reader.transactions[1].events == []
    assert reader.transactions[1].unlisted == {"consumer_groups", "consumer_offsets"}


async def test_a_slow_consumer_does_not_look_dead(make_server: MakeServer, opened: OpenStore) -> None:
    """Status updates have a timer of their own: the server would otherwise end the connection after its timeout."""
    server = make_server({"wal_sender_timeout": "600ms"})
    url = server.url("postgres")
    source = PostgresSource(url, await opened(url), postgres_settings(url), SystemLoopClock())
    stream = source.stream(EVERYTHING)
    await anext(stream)  # the gap
    await anext(stream)  # the start
    await written(url, "a")
    while not isinstance(await anext(stream), list):
        pass
    await asyncio.sleep(2.0)  # the test's subject: three timeouts long
    assert source.status().connected
    await written(url, "b")
    while not isinstance(batch := await anext(stream), list):
        pass
    assert [event.data.group_id for item in batch for event in item.events] == ["b"]
    await stream.aclose()
    await source.close()
