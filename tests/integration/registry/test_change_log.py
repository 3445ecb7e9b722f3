"""SQLite's change log: one row per changed row, with both images, grouped by transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from registry import change_log
from registry.contract import MetadataStore
from registry.engines import parse_url, sqlite_path
from registry.errors import RegistryError
from registry.inputs import OffsetDraft
from registry.models import PUBLISHED, UNPUBLISHED, Row
from registry.position import Position
from registry.schema import PUBLISHED_TABLES
from tests.contracts.contents import contents
from tests.fixtures.stores import OpenStore
from tests.samples import ONE_OF_EACH, TABLE, file, segment, snapshot

KINDS = {kind.table: kind for kind in (*PUBLISHED, *UNPUBLISHED)}


class LoggedChange(NamedTuple):
    sequence: int
    transaction: int | None
    table: str
    operation: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class ChangeLog:
    def __init__(self, url: str) -> None:
        self.connection = sqlite3.connect(sqlite_path(parse_url(url)), isolation_level=None)
        self.connection.execute("PRAGMA foreign_keys = ON")
        self._seen = 0

    def new(self) -> list[LoggedChange]:
        """Returns the changes logged since the last call."""
        rows = self.connection.execute(
            "SELECT sequence, transaction_number, table_name, operation, before, after "
            "FROM change_log WHERE sequence > ? ORDER BY sequence",
            [self._seen],
        ).fetchall()
        if rows:
            self._seen = rows[-1][0]
        return [
            LoggedChange(sequence, number, table, operation, before and json.loads(before), after and json.loads(after))
            for sequence, number, table, operation, before, after in rows
        ]


@pytest.fixture
def log(sqlite_url: str) -> Iterator[ChangeLog]:
    opened = ChangeLog(sqlite_url)
    yield opened
    opened.connection.close()


@pytest.fixture
async def store(sqlite_url: str, opened: OpenStore) -> MetadataStore:
    return await opened(sqlite_url)


def _summary(changes: list[LoggedChange]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for change in changes:
        key = (change.table, change.operation)
        found[key] = found.get(key, 0) + 1
    return found


def _row(kind: type[Row], image: dict[str, Any]) -> Row:
    """Returns the row of an image: booleans are integers in SQLite, the rest is as in the model."""
    values = {
        name: bool(value) if name in ("is_compressed", "refresh_owed") else value for name, value in image.items()
    }
    assert tuple(values) == kind.__struct_fields__
    return kind(**values)


async def test_each_verb_logs_its_rows_once_and_together(store: MetadataStore, log: ChangeLog) -> None:
    async def logged(call: Any, **expected: int) -> list[LoggedChange]:
        await call
        changes = log.new()
        wanted = {tuple(key.rsplit("_", 1)): count for key, count in expected.items()}
        assert {(table, operation.lower()): count for (table, operation), count in _summary(changes).items()} == wanted
        assert len({change.transaction for change in changes}) == 1
        assert changes[0].transaction is not None
        transactions.append(changes[0].transaction)
        return changes

    transactions: list[int] = []
    await logged(store.create_topic("orders", 3), topics_insert=1, partitions_insert=3)
    await logged(store.update_topic_config("orders", {}), topics_update=1)
    await logged(store.add_segments([segment(0), segment(10)]), segments_insert=2, partitions_update=1)
    await logged(store.add_segment(segment(0, partition=1)), segments_insert=1, partitions_update=1)
    await logged(store.ensure_consumer_group("readers"), consumer_groups_insert=1)
    await logged(store.commit_offset("readers", "orders", 0, 1), consumer_offsets_insert=1)
    both = [OffsetDraft("orders", 0, 2), OffsetDraft("orders", 1, 2)]
    await logged(store.commit_offsets("readers", both), consumer_offsets_insert=1, consumer_offsets_update=1)
    await logged(store.register_agent("agent-1", "host:1"), agents_insert=1)
    await logged(store.register_agent("agent-1", "host:1"), agents_update=1)
    await logged(store.acquire_partition_leases([("orders", 0)], "agent-1", 10), partition_leases_insert=1)
    await logged(
        store.acquire_partition_leases([("orders", 0), ("orders", 1)], "agent-1", 10),
        partition_leases_insert=1, partition_leases_update=1,
    )  # fmt: skip
    await logged(store.delete_segments_before("orders", 0, 10), segments_delete=1)
    await logged(store.deregister_agent("agent-1"), agents_delete=1, partition_leases_update=2)
    await logged(
        store.delete_topic("orders"),
        topics_delete=1, partitions_delete=3, segments_delete=2, consumer_offsets_delete=2, partition_leases_delete=2,
    )  # fmt: skip
    await logged(store.create_table("db", "t", "s3://lake/t", TABLE), tables_insert=1, table_metadata_insert=1)
    adding = store.add_files(1, [file("1", partition="a"), file("2", partition="a"), file("3", partition="b")])
    await logged(adding, table_files_insert=3, table_stats_insert=2, tables_update=1)
    old = await store.get_files(1, ["1", "3"])
    await logged(
        store.swap_files(1, old, [file("4", partition="a")], operation_id="s"),
        table_files_delete=2, table_files_insert=1, table_stats_update=2, tables_update=1,
    )  # fmt: skip
    await logged(store.request_snapshot(1), table_snapshots_insert=1)
    await logged(store.update_snapshot(1, snapshot(5)), table_snapshots_update=1)
    await logged(
        store.drop_table(1, purge=True),
        tables_delete=1, table_metadata_delete=1, table_files_delete=2, table_stats_delete=2, table_snapshots_delete=1,
    )  # fmt: skip
    assert transactions == sorted(set(transactions))  # each verb its own, growing


async def test_unpublished_tables_are_not_logged(store: MetadataStore, log: ChangeLog) -> None:
    await store.record_intents(["a"], purpose="p", owner="o")
    await store.complete_intents(["a"])
    assert await store.take_daemon_lease("astha", "one", 1_000)
    await store.record_source_identity("registry", "x")
    assert log.new() == []


async def test_verbs_that_change_nothing_log_nothing(store: MetadataStore, log: ChangeLog) -> None:
    await store.create_topic("orders", 1)
    await store.ensure_consumer_group("readers")
    await store.create_table("db", "t", "s3://lake/t", TABLE)
    await store.add_files(1, [file("1")])
    log.new()
    await store.ensure_consumer_group("readers")
    await store.update_high_watermark("orders", 0, 0)
    await store.delete_segments_before("orders", 0, 10)
    await store.recount_statistics(1)
    await store.add_files(1, [])
    assert log.new() == []


async def test_a_failed_verb_logs_nothing(store: MetadataStore, log: ChangeLog) -> None:
    await store.create_topic("orders", 1)
    await store.create_table("db", "t", "s3://lake/t", TABLE)
    log.new()
    calls = [
        store.create_topic("orders", 1),
        store.add_segments([segment(0), segment(0, partition=9)]),
        store.add_files(1, [file("1"), file("2", version=9)]),
        store.drop_table(99),
    ]
    for call in calls:
        with pytest.raises(RegistryError):
            await call
    async with store._autocommit() as connection:  # type: ignore[attr-defined]
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
        await connection.exec_driver_sql(change_log.ANNOUNCE)
        await connection.exec_driver_sql("DELETE FROM topics")  # and never a COMMIT
    assert log.new() == []
    clock = log.connection.execute("SELECT transaction_number FROM change_clock").fetchall()
    assert clock == [(None,)]


@pytest.mark.parametrize("kind", PUBLISHED, ids=lambda kind: kind.table)
async def test_row_images_are_complete_and_typed(store: MetadataStore, log: ChangeLog, kind: type[Row]) -> None:
    async with store.load() as load:
        for row in ONE_OF_EACH:
            await load.add([row])
    loaded = [change for change in log.new() if change.table == kind.table]
    rows = [row for row in ONE_OF_EACH if type(row) is kind]
    assert [change.before for change in loaded] == [None] * len(rows)
    assert [_row(kind, change.after or {}) for change in loaded] == rows
    # An update of every column in turn, to what it was, and then a removal.
    key = kind.key[0]
    for column in kind.__struct_fields__:
        log.connection.execute(f'UPDATE {kind.table} SET "{column}" = "{column}"')
        updated = [change for change in log.new() if change.table == kind.table]
        assert [_row(kind, change.before or {}) for change in updated] == rows
        assert [_row(kind, change.after or {}) for change in updated] == rows
    log.connection.execute(f'DELETE FROM {kind.table} WHERE "{key}" IS NOT NULL')
    removed = [change for change in log.new() if change.table == kind.table]
    assert {_row(kind, change.before or {}) for change in removed} == set(rows)
    assert [change.after for change in removed] == [None] * len(rows)


async def test_extreme_values_survive_the_images(store: MetadataStore, log: ChangeLog) -> None:
    name = "ü \"'\\ \U0001f600"
    await store.create_topic(name, 1, retention_ms=2**63 - 1, config={"\u0000": "\u2028", "n": 2**53 + 1})
    (topic, _) = log.new()
    assert topic.after is not None
    found = await store.get_topic(name)
    assert _row(KINDS["topics"], topic.after) == found
    assert topic.after["retention_ms"] == 2**63 - 1


async def test_rows_of_raw_sql_have_no_transaction_number(store: MetadataStore, log: ChangeLog) -> None:
    await store.create_topic("orders", 1)
    log.new()
    log.connection.execute("UPDATE partitions SET high_watermark = 5")
    (change,) = log.new()
    assert (change.transaction, change.table, change.operation) == (None, "partitions", "UPDATE")
    await store.update_high_watermark("orders", 0, 6)
    (change,) = log.new()
    assert change.transaction is not None
    log.connection.execute("BEGIN")
    log.connection.execute("DELETE FROM topics")
    log.connection.execute("ROLLBACK")
    assert log.new() == []
    log.connection.execute("DELETE FROM topics")
    assert {(change.transaction, change.table) for change in log.new()} == {(None, "topics"), (None, "partitions")}


async def test_replaying_the_log_gives_the_registry(store: MetadataStore, log: ChangeLog) -> None:
    """Applying every change in order results in the registry's rows."""
    await store.create_topic("orders", 2)
    await store.ensure_consumer_group("readers")
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    for turn in range(10):
        await store.add_segments([segment(turn * 10), segment(turn * 10, partition=1)])
        await store.commit_offset("readers", "orders", turn % 2, turn)
        files = await store.add_files(table.id, [file(f"{turn}-{n}", partition=str(n)) for n in range(3)])
        await store.swap_files(table.id, files[:2], [file(f"{turn}-s")], operation_id=f"s{turn}")
    await store.delete_segments_before("orders", 0, 55)
    state: dict[tuple[str, tuple[object, ...]], Row] = {}
    for change in log.new():
        kind = KINDS[change.table]
        if change.before is not None:
            row = _row(kind, change.before)
            assert state.pop((kind.table, tuple(getattr(row, name) for name in kind.key))) == row
        if change.after is not None:
            row = _row(kind, change.after)
            state[kind.table, tuple(getattr(row, name) for name in kind.key)] = row
    found = await contents(store)
    expected = {row for name in PUBLISHED_TABLES for row in found[name]}
    assert set(state.values()) == expected


async def test_positions_and_visibility_are_the_logs_sequence(store: MetadataStore, log: ChangeLog) -> None:
    assert await store.position() == 0
    await store.create_topic("orders", 2)
    *_, last = log.new()
    assert await store.position() == last.sequence
    async with store.consistent_read() as read:
        await store.create_topic("later", 1)
        first_later, *_ = log.new()
        assert read.visibility.contains(0, Position(last.sequence)) is True
        assert read.visibility.contains(0, Position(first_later.sequence)) is False
    log.connection.execute("DELETE FROM change_log")  # a tail that has been served
    position = await store.position()
    await store.create_topic("last", 1)
    assert await store.position() > position
