"""Writers that do at random what a registry's users do: whole verbs, and SQL by hand, some of it rolled back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import change_log
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.engines import StoreSettings, async_engine, parse_url
from registry.errors import RegistryError
from registry.inputs import FileDraft, OffsetDraft, SegmentDraft, TableDraft
from registry.json_text import JsonText
from tests.faults.durable_component import PAIR

PAIRS = 12


class Writer:
    """One store. Whatever fails is given up: the next thing is another."""

    def __init__(self, url: str, seed: str) -> None:
        self._url = url
        self._random = random.Random(seed)
        self.done = 0
        self.failed = 0

    async def run(self, until: asyncio.Event, pause_s: float) -> None:
        store = await self._open(until)
        if store is None:
            return
        verbs: list[tuple[int, Callable[[MetadataStore], Awaitable[None]]]] = [
            (40, self._pairs), (8, self._topics), (6, self._segments), (6, self._offsets), (3, self._files),
            (2, self._many), (1, self._truncate),
        ]  # fmt: skip
        weights = [weight for weight, _ in verbs]
        try:
            while not until.is_set():
                (chosen,) = self._random.choices([verb for _, verb in verbs], weights)
                try:
                    await chosen(store)
                    self.done += 1
                except (RegistryError, SQLAlchemyError, OSError):
                    self.failed += 1
                await asyncio.sleep(self._random.random() * pause_s * 2)
        finally:
            await store.close()
            await self._close()

    async def _close(self) -> None:
        pass

    async def _pairs(self, store: MetadataStore) -> None:
        """Both rows of some pairs, in one transaction; sometimes taken back."""
        raise NotImplementedError

    async def _many(self, store: MetadataStore) -> None:
        """More rows than the smallest lane holds, and sometimes than any transaction may have."""
        raise NotImplementedError

    async def _truncate(self, store: MetadataStore) -> None:
        raise NotImplementedError

    async def _open(self, until: asyncio.Event) -> MetadataStore | None:
        while not until.is_set():
            try:
                return await open_store(self._url)
            except RegistryError:
                await asyncio.sleep(0.05)
        return None

    async def _topics(self, store: MetadataStore) -> None:
        name = f"topic-{self._random.randrange(8)}"
        match self._random.randrange(3):
            case 0:
                await store.create_topic(name, self._random.randrange(1, 5))
            case 1:
                await store.delete_topic(name)
            case _:
                await store.update_topic_config(name, {"note": "ü" * self._random.randrange(3_000)})

    async def _segments(self, store: MetadataStore) -> None:
        name = f"topic-{self._random.randrange(8)}"
        partition = await store.get_partition(name, 0)
        if partition is not None:
            base, count = partition.high_watermark, self._random.randrange(1, 20)
            await store.add_segments(
                [SegmentDraft(name, 0, base + n, base + n, 1, 1, "b", f"k{base + n}") for n in range(count)]
            )

    async def _offsets(self, store: MetadataStore) -> None:
        await store.ensure_consumer_group("readers")
        offset = self._random.randrange(1_000)
        await store.commit_offsets("readers", [OffsetDraft(f"topic-{n}", 0, offset) for n in range(3)])

    async def _files(self, store: MetadataStore) -> None:
        tables = await store.list_tables()
        if not tables:
            await store.create_table("db", "t", "s3://b/t", TableDraft(schema=JsonText("{}")))
            return
        live = await store.list_files(tables[0].id, limit=20)
        drafts = [
            FileDraft(file_path=f"s3://b/t/{self._random.random()}", file_size=1, row_count=1, schema_version=1)
            for _ in range(2)
        ]
        if len(live) > 5:
            await store.swap_files(tables[0].id, live[:4], drafts, operation_id=f"swap-{self._random.random()}")
        else:
            await store.add_files(tables[0].id, drafts)


class SqlWriter(Writer):
    """Has one connection by hand, too."""

    def __init__(self, url: str, seed: str) -> None:
        super().__init__(url, seed)
        self._engine = async_engine(parse_url(url), StoreSettings(pool_size=2, statement_timeout_s=10))
        self._announces = url.startswith("sqlite")

    async def _close(self) -> None:
        await self._engine.dispose()

    async def _begin(self, connection: AsyncConnection) -> None:
        """On SQLite announced, as the registry's own writers do it: who does not is joined with others, and joined
        differently when it comes again, so that repetitions can't be told from violations.
        """
        for statement in ("BEGIN IMMEDIATE", change_log.ANNOUNCE) if self._announces else ("BEGIN",):
            await connection.exec_driver_sql(statement)

    async def _end(self, connection: AsyncConnection, how: str = "COMMIT") -> None:
        for statement in (change_log.RETRACT, how) if self._announces else (how,):
            await connection.exec_driver_sql(statement)

    async def _pairs(self, _: MetadataStore) -> None:
        """Both rows of a pair, in one transaction, with savepoints; sometimes taken back."""
        value = self._random.randrange(1 << 40)
        chosen = sorted(self._random.sample(range(PAIRS), self._random.choice([1, 1, 2, 4])))
        async with self._engine.connect() as connection:
            await self._begin(connection)
            for pair in chosen:
                await self._pair(connection, pair, value)
            await self._end(connection, "ROLLBACK" if self._random.random() < 0.1 else "COMMIT")

    async def _pair(self, connection: AsyncConnection, pair: int, value: int) -> None:
        both = f"('{PAIR}{pair}a', '{PAIR}{pair}b')"
        if self._random.random() < 0.1:
            await connection.exec_driver_sql(f"DELETE FROM consumer_groups WHERE group_id IN {both}")
            return
        for side in "ab":
            if self._random.random() < 0.3:
                await connection.exec_driver_sql("SAVEPOINT one")
                await connection.exec_driver_sql(_upsert(f"{PAIR}{pair}{side}", value + 1))
                taken_back = self._random.random() < 0.5
                await connection.exec_driver_sql(f"{'ROLLBACK TO' if taken_back else 'RELEASE'} SAVEPOINT one")
            await connection.exec_driver_sql(_upsert(f"{PAIR}{pair}{side}", value))
            if self._random.random() < 0.2:
                await asyncio.sleep(self._random.random() * 0.01)

    async def _many(self, _: MetadataStore) -> None:
        count, value = self._random.choice([80, 150, 600]), self._random.randrange(1 << 40)
        rows = ", ".join(f"('many-{n}', 0, {value})" for n in range(count))
        async with self._engine.connect() as connection:
            await self._begin(connection)
            await connection.exec_driver_sql(
                "DELETE FROM consumer_groups WHERE group_id >= 'many-' AND group_id < 'many.'"
            )
            await connection.exec_driver_sql(f"INSERT INTO consumer_groups VALUES {rows}")
            await self._end(connection)

    async def _truncate(self, _: MetadataStore) -> None:
        async with self._engine.connect() as connection:
            statement = "DELETE FROM consumer_offsets" if self._announces else "TRUNCATE consumer_offsets"
            await self._begin(connection)
            await connection.exec_driver_sql(statement)
            await self._end(connection)


def _upsert(name: str, value: int) -> str:
    return (
        f"INSERT INTO consumer_groups VALUES ('{name}', 0, {value}) "
        "ON CONFLICT (group_id) DO UPDATE SET updated_at = excluded.updated_at"
    )
