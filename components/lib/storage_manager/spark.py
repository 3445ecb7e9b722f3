"""Inserts from Spark: a data source whose tasks write the files and whose driver registers them.

    from components.lib.storage_manager.spark import register

    register(spark)
    df.write.format("astha").option("table", "shop.orders").mode("append").save()

Options: ``table``; ``registry`` (a URL) and ``config`` (a settings file), if they are not those of the environment;
``fill_missing``; and any setting by its name, such as ``lake.s3.endpoint``. After ``save`` all rows are in the table,
or none. Workers need this package, and access to both the registry and the storage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa
from pydantic import SecretStr
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from astha.clock import SystemLoopClock
from astha.settings import Settings, load_settings
from astha.subscribers.context import ComponentContext, LakeSettings
from components.lib.lake.registration.registrar import Registrar
from components.lib.lake.registration.upload_intents import remove_uploads
from components.lib.lake.storage.objects import Objects
from components.lib.storage_manager.errors import InsertError
from components.lib.storage_manager.manager import StorageManager
from components.lib.storage_manager.settings import StorageSettings
from components.lib.storage_manager.table_handles import TableHandle
from components.lib.storage_manager.uuids import uuid_columns, with_uuids
from registry.connect import open_store
from registry.engines import StoreSettings
from registry.inputs import FileDraft, Registration

T = TypeVar("T")

_RENEW_EVERY_S = 60.0


def register(spark: SparkSession) -> None:
    """Registers the format ``astha`` with the session."""
    spark.dataSource.register(AsthaDataSource)


@dataclass(frozen=True)
class SparkInsert:
    """One `save`, as it is sent to the workers."""

    table: str
    registry: SecretStr
    store: StoreSettings
    lake: LakeSettings
    settings: StorageSettings
    owner: str = field(default_factory=lambda: f"spark {uuid4().hex}")

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SparkInsert:
        table = options.get("table")
        if not table:
            raise InsertError('name the table that the rows go to: .option("table", "database.table")')
        flags: dict[str, Any] = {}
        for name, value in options.items():
            if "." in name:
                *groups, last = name.split(".")
                under = flags
                for group in groups:
                    under = under.setdefault(group, {})
                under[last] = value
        if options.get("registry"):
            flags.setdefault("registry", {})["url"] = options["registry"]
        config = options.get("config")
        settings = load_settings(Path(config) if config else None, flags)
        return cls.to(table, settings, fill_missing=options.get("fill_missing", "false").lower() == "true")

    @classmethod
    def to(cls, table: str, settings: Settings, *, fill_missing: bool = False) -> SparkInsert:
        # A task has one core, and uses every name that it takes.
        storage = StorageSettings(
            fill_missing=fill_missing,
            parallel_files=1,
            names_ahead=0,
            renew_every_s=_RENEW_EVERY_S,
        )
        return cls(table, settings.registry.url, settings.registry.store, settings.lake, storage)


@dataclass
class TaskFiles(WriterCommitMessage):
    """The files of one task, sent to the driver."""

    table_id: int
    files: list[FileDraft]


class AsthaDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "astha"

    def writer(self, schema: StructType, overwrite: bool) -> AsthaWriter:
        if overwrite:
            raise InsertError('astha only inserts: use .mode("append")')
        return AsthaWriter(SparkInsert.of(self.options))


class AsthaWriter(DataSourceArrowWriter):
    def __init__(self, insert: SparkInsert) -> None:
        self._insert = insert

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Runs one task. Removes its files if it fails; files of a killed task are found by their intents."""
        return self._run(lambda context: self._write(context, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Registers the files of all tasks in one transaction."""
        registration = self.registration([message for message in messages if isinstance(message, TaskFiles)])
        if registration is not None:
            self._run(lambda context: self._register(context, registration))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Keeps the intents of unfinished tasks, which may still write: the cleaner looks at them later."""
        finished = {file.file_path for message in messages if isinstance(message, TaskFiles) for file in message.files}
        self._run(lambda context: self._remove(context, finished))

    def registration(self, written: Sequence[TaskFiles]) -> Registration | None:
        """Returns the registration of all tasks' files, or None if there are none."""
        files = [file for message in written for file in message.files]
        if not files:
            return None
        return Registration(table_id=written[0].table_id, files=files, intents_of=self._insert.owner)

    async def write_rows(
        self, manager: StorageManager, target: TableHandle, batches: Iterable[pa.RecordBatch]
    ) -> TaskFiles:
        return TaskFiles(target.table.id, await manager.write_files(target, _typed(batches, target)))

    async def _write(self, context: ComponentContext, batches: Iterable[pa.RecordBatch]) -> TaskFiles:
        async with StorageManager(context, self._insert.settings, owner=self._insert.owner) as manager:
            return await self.write_rows(manager, await manager.target(self._insert.table), batches)

    async def _register(self, context: ComponentContext, registration: Registration) -> None:
        async with Registrar(context.store, context.clock) as registrar:
            await registrar.register(registration, sync=True)

    async def _remove(self, context: ComponentContext, finished: set[str]) -> None:
        """Once the intents have another owner, no file of this insert can be registered."""
        owner = self._insert.owner
        left = await context.store.renew_intents(None, owner=owner, new_owner=f"{owner}, aborted")
        await remove_uploads(context.store, Objects(context.lake), left, unconfirmed=set(left) - finished)

    def _run(self, work: Callable[[ComponentContext], Awaitable[T]]) -> T:
        async def run() -> T:
            clock = SystemLoopClock()
            store = await open_store(self._insert.registry.get_secret_value(), settings=self._insert.store, clock=clock)
            try:
                return await work(ComponentContext(store, clock, self._insert.registry, self._insert.lake))
            finally:
                await store.close()

        return asyncio.run(run())


def _typed(batches: Iterable[pa.RecordBatch], target: TableHandle) -> Iterator[pa.Table]:
    """Converts UUIDs from text, because Spark has no type for them."""
    uuids = uuid_columns(target.schema)
    row = 1
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for name in uuids:
            if name in table.column_names and pa.types.is_string(table.schema.field(name).type):
                table = with_uuids(table, name, row)
        yield table
        row += table.num_rows
