"""Writers that perform random operations and record the acknowledged ones."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from astha.errors import AsthaError
from components.lib.lake.iceberg import IcebergTables
from components.lib.lake.schema.evolution import AddColumn, DropColumn, RenameColumn, SchemaChange, WidenColumn, evolve
from components.lib.lake.schema.table_definition import parse_definition
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.locations import table_location
from components.lib.lake.storage.objects import Objects
from components.lib.lake.table_lookup import begin_drop
from components.lib.storage_manager import StorageManager
from components.lib.storage_manager.upload import Upload
from components.snapshotter.rollback import Rollback
from registry.contract import MetadataStore
from registry.errors import RegistryError
from registry.models import LakeTable, TableFile, TableMetadata
from tests.e2e.expected_rows import ExpectedRows, amount_of, kind_of

T = TypeVar("T")

TABLES = 4
ID, KIND, AMOUNT = 1, 2, 3
"""Field ids, which do not change with names."""


class Writer:
    """`pace_s` is the mean pause between two operations."""

    def __init__(
        self, expected: ExpectedRows, manager: StorageManager, store: MetadataStore, tables: IcebergTables,
        objects: Objects, warehouse: str, seed: str, pace_s: float = 0.1,
    ) -> None:  # fmt: skip
        self._expected, self._manager, self._store, self._tables = expected, manager, store, tables
        self._rollback = Rollback(store, tables, _threaded, objects)
        self._objects = objects
        self._warehouse = warehouse
        self._random = random.Random(seed)
        self._pace_s = pace_s

    async def run(self, until: asyncio.Event) -> None:
        actions: list[tuple[int, Callable[[int], Awaitable[object]]]] = [
            (50, self._insert), (10, self._remove), (15, self._compact), (6, self._alter), (5, self._roll_back),
            (5, self._tag), (2, self._drop),
        ]  # fmt: skip
        weights = [weight for weight, _ in actions]
        while not until.is_set():
            if not self._expected.tables or (len(self._expected.tables) < TABLES and self._random.random() < 0.2):
                await self._attempt("create", self._create())
            else:
                (chosen,) = self._random.choices([action for _, action in actions], weights)
                table_id = self._random.choice(list(self._expected.tables))
                await self._attempt(chosen.__name__.strip("_"), chosen(table_id))
            await asyncio.sleep(self._random.random() * 2 * self._pace_s)

    async def _attempt(self, name: str, action: Awaitable[object]) -> None:
        """A conflicting operation is refused as a whole: it must have no visible effect."""
        try:
            await action
        except (RegistryError, AsthaError):
            self._expected.refused[name] += 1
        else:
            self._expected.acknowledged[name] += 1

    async def _create(self) -> None:
        number = self._expected.numbers(1)[0]
        name = f"t{number % 10}"
        columns = ["id: long!", "kind: string", "amount: int", "note: string"]
        partitioned = ["kind"] if self._random.random() < 0.6 else []
        content = {"columns": [dict([column.split(": ")]) for column in columns], "partition_by": partitioned}
        draft = parse_definition(content).schema().draft()
        location = table_location(self._warehouse, "e2e", name)
        table = await self._store.create_table("e2e", name, location, draft)
        self._expected.tables[table.id] = name

    async def _insert(self, table_id: int) -> None:
        numbers = self._expected.numbers(self._random.choice([1, 3, 10, 100]))
        target = await self._manager.target(table_id)
        sync = self._random.random() < 0.5
        inserted = await self._manager.insert(table_id, rows_of(numbers, target.schema), sync=sync)
        files = await inserted.registered
        for file in files:
            self._expected.record(file.file_path, [n for n in numbers if in_partition(n, file.partition_path)])
        assert sum(file.row_count for file in files) == len(numbers)
        self._expected.add(table_id, *(file.file_path for file in files))

    async def _remove(self, table_id: int) -> None:
        chosen = await self._some(table_id, 2)
        if chosen:
            await self._learn([file.file_path for file in chosen])
            await self._store.remove_files(table_id, chosen, reason="e2e")
            self._expected.remove(table_id, *(file.file_path for file in chosen))

    async def _compact(self, table_id: int) -> None:
        by_partition: defaultdict[str, list[TableFile]] = defaultdict(list)
        for file in await self._store.list_files(table_id):
            if self._expected.rows_of(file.file_path) is not None:
                by_partition[file.partition_path].append(file)
        groups = [group for group in by_partition.values() if len(group) > 2]
        if groups:
            old = self._random.choice(groups)[: self._random.randint(2, 8)]
            await self._swap(table_id, old)

    async def _swap(self, table_id: int, old: Sequence[TableFile]) -> None:
        manager = self._manager
        numbers = sorted(number for file in old for number in self._expected.rows_of(file.file_path) or ())
        target = await manager.target(table_id, fresh=True)
        upload = Upload(target, manager._names, manager._objects, manager._slots)
        try:
            await upload.write(await manager.prepare(rows_of(numbers, target.schema), target))
            (draft,) = await upload.finish()
            self._expected.record(draft.file_path, numbers)
            name = f"swap-{self._expected.numbers(1)[0]}"
            await self._store.swap_files(table_id, old, [draft], operation_id=name, intents_of=manager.owner)
        except BaseException:
            await manager._abandon(upload)
            raise
        self._expected.add(table_id, draft.file_path)
        self._expected.remove(table_id, *(file.file_path for file in old))

    async def _alter(self, table_id: int) -> None:
        versions = await self._store.list_table_metadata(table_id)
        draft = evolve(versions, [self._change(versions[-1])])
        await self._store.add_schema_version(table_id, draft, expected=versions[-1].schema_version)

    def _change(self, newest: TableMetadata) -> SchemaChange:
        schema, number = TableSchema.of(newest).iceberg, self._expected.numbers(1)[0]
        amount = schema.find_field(AMOUNT)
        extras = [field.name for field in schema.fields if field.field_id > AMOUNT]
        choices: list[SchemaChange] = [
            AddColumn(NestedField(0, f"extra_{number}", StringType())),
            RenameColumn(amount.name, f"amount_{number}"),
        ]
        if isinstance(amount.field_type, IntegerType):
            choices.append(WidenColumn(amount.name, LongType()))
        if extras:
            choices.append(DropColumn(self._random.choice(extras)))
        return self._random.choice(choices)

    async def _roll_back(self, table_id: int) -> None:
        table = await self._table(table_id)
        loaded = await asyncio.to_thread(self._tables.load, table)
        if loaded is None or not loaded.metadata.snapshots:
            return
        chosen = self._random.choice(loaded.metadata.snapshots[-6:])
        plan = await self._rollback.plan(table, str(chosen.snapshot_id))
        await self._learn([file.file_path for file in plan.removed] + [draft.file_path for draft in plan.restored])
        await self._rollback.perform(plan)
        self._expected.remove(table_id, *(file.file_path for file in plan.removed))
        self._expected.add(table_id, *(draft.file_path for draft in plan.restored))

    async def _tag(self, table_id: int) -> None:
        await self._store.request_snapshot(table_id, tag=f"tag-{self._expected.numbers(1)[0]}")

    async def _drop(self, table_id: int) -> None:
        """Other writers stop using the table at once; an insert in flight is refused or dropped with it."""
        name = self._expected.tables.pop(table_id)
        table = await self._table(table_id)
        try:
            if self._random.random() < 0.5:
                await begin_drop(self._store, table, purge=self._random.random() < 0.5)  # the daemon does the rest
            else:
                await self._store.drop_table(table_id, purge=self._random.random() < 0.5)
        except BaseException:
            self._expected.tables[table_id] = name
            raise

    async def _learn(self, paths: Sequence[str]) -> None:
        """Reads the rows of files without a record: of a compactor, or of a writer without its acknowledgement yet."""
        for path in paths:
            if self._expected.rows_of(path) is None:
                file = pq.ParquetFile(pa.BufferReader(await self._objects.get(path)))
                (column,) = (place for place, field in enumerate(file.schema_arrow) if field_id(field) == ID)
                self._expected.record(path, file.read().column(column).to_pylist())

    async def _table(self, table_id: int) -> LakeTable:
        table = await self._store.get_table_by_id(table_id)
        if table is None:
            raise AsthaError(f"table {table_id} is gone")
        return table

    async def _some(self, table_id: int, most: int) -> list[TableFile]:
        live = await self._store.list_files(table_id)
        return self._random.sample(live, min(len(live), self._random.randint(1, most)))


def field_id(field: pa.Field) -> int:
    return int((field.metadata or {}).get(b"PARQUET:field_id", 0))


def rows_of(numbers: Iterable[int], schema: TableSchema) -> list[dict[str, Any]]:
    names = {field.field_id: field.name for field in schema.iceberg.fields}
    return [{names[ID]: number, names[KIND]: kind_of(number), names[AMOUNT]: amount_of(number)} for number in numbers]


def in_partition(number: int, path: str) -> bool:
    return not path or path == f"kind={quote(kind_of(number), safe='')}"


async def _threaded(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)
