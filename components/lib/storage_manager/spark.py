"""Insert from Spark: a data source whose tasks write the files and whose driver registers them.

    from components.lib.storage_manager.spark import register

    register(spark)
    df.write.format("astha").option("table", "shop.orders").mode("append").save()

Options: ``table``; ``registry``, a URL, and ``config``, a file of settings, if they are not those of the environment;
``fill_missing``; and any setting by its name, such as ``lake.s3.endpoint``. All rows are in the table after ``save``,
or none. Workers need this package, and reach both the registry and the storage.
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
    """Teach the session the format ``astha``."""
    spark.dataSource.register(AsthaDataSource)


@dataclass(frozen=True)
class SparkInsert:
    """One `save`, as every worker knows it."""

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
        # A task has a core of its own, and uses the names that it takes.
        storage = StorageSettings(
            fill_missing=fill_missing,
            parallel_files=1,
            names_ahead=0,
            renew_every_s=_RENEW_EVERY_S,
        )
        return cls(table, settings.registry.url, settings.registry.store, settings.lake, storage)


@dataclass
class TaskFiles(WriterCommitMessage):
    """What a task tells the driver."""

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
    def __init__(self, job: SparkInsert) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """One task. What it wrote is removed if it fails; what it had in hand when it was killed has an intent."""
        return self._run(lambda around: self._write(around, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks' files in one transaction."""
        registration = self.registration([message for message in messages if isinstance(message, TaskFiles)])
        if registration is not None:
            self._run(lambda around: self._register(around, registration))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some tasks may still be at work: their intents stay, for the cleaner to look again."""
        finished = {file.file_path for message in messages if isinstance(message, TaskFiles) for file in message.files}
        self._run(lambda around: self._remove(around, finished))

    def registration(self, written: Sequence[TaskFiles]) -> Registration | None:
        """What is registered when all tasks are done; None if there is nothing."""
        files = [file for message in written for file in message.files]
        if not files:
            return None
        return Registration(table_id=written[0].table_id, files=files, intents_of=self._job.owner)

    async def write_rows(
        self, manager: StorageManager, target: TableHandle, batches: Iterable[pa.RecordBatch]
    ) -> TaskFiles:
        return TaskFiles(target.table.id, await manager.write_files(target, _typed(batches, target)))

    async def _write(self, around: ComponentContext, batches: Iterable[pa.RecordBatch]) -> TaskFiles:
        async with StorageManager(around, self._job.settings, owner=self._job.owner) as manager:
            return await self.write_rows(manager, await manager.target(self._job.table), batches)

    async def _register(self, around: ComponentContext, registration: Registration) -> None:
        async with Registrar(around.store, around.clock) as registrar:
            await registrar.register(registration, sync=True)

    async def _remove(self, around: ComponentContext, finished: set[str]) -> None:
        """Once the intents are another's, nothing of this job can be registered any more."""
        owner = self._job.owner
        left = await around.store.renew_intents(None, owner=owner, new_owner=f"{owner}, aborted")
        await remove_uploads(around.store, Objects(around.lake), left, unconfirmed=set(left) - finished)

    def _run(self, work: Callable[[ComponentContext], Awaitable[T]]) -> T:
        async def run() -> T:
            clock = SystemLoopClock()
            store = await open_store(self._job.registry.get_secret_value(), settings=self._job.store, clock=clock)
            try:
                return await work(ComponentContext(store, clock, self._job.registry, self._job.lake))
            finally:
                await store.close()

        return asyncio.run(run())


def _typed(batches: Iterable[pa.RecordBatch], target: TableHandle) -> Iterator[pa.Table]:
    """Spark has no UUIDs: they come as text."""
    uuids = uuid_columns(target.schema)
    row = 1
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for name in uuids:
            if name in table.column_names and pa.types.is_string(table.schema.field(name).type):
                table = with_uuids(table, name, row)
        yield table
        row += table.num_rows
