"""`StorageManager`: writes rows to files, and registers the files with their table.

    async with StorageManager(context) as manager:
        inserted = await manager.insert("shop.orders", table)   # its files are durable
        await inserted.registered                               # and registered

Upload intents are recorded before an object is created, and completed by its registration. So whatever happens to this
process, an object is either registered or found by the cleaner; an insert that fails removes its own objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, TypeAlias, TypeGuard
from uuid import uuid4

import pyarrow as pa
import structlog

from astha.subscribers.context import ComponentContext
from astha.tasks import BackgroundTasks
from components.lib.lake.registration.registrar import Registrar
from components.lib.lake.registration.upload_intents import remove_uploads
from components.lib.lake.storage.objects import Objects
from components.lib.storage_manager.buffers import Part, PartitionBuffers, divide
from components.lib.storage_manager.coercion import coerce
from components.lib.storage_manager.errors import RowsRefused
from components.lib.storage_manager.frames import Frame, from_frame
from components.lib.storage_manager.insert_result import InsertResult, PendingInserts, RegistrationFuture
from components.lib.storage_manager.insert_stream import InsertStream
from components.lib.storage_manager.row_conversion import Row, table_from_rows
from components.lib.storage_manager.settings import StorageSettings
from components.lib.storage_manager.table_handles import TableHandle, TableHandles
from components.lib.storage_manager.upload import Upload
from components.lib.storage_manager.upload_names import UploadNames
from registry.errors import AlreadyInserted, NotFound, RegistryError
from registry.inputs import FileDraft, Registration

log = structlog.get_logger(__name__)

Batches: TypeAlias = "pa.RecordBatchReader | Iterable[pa.RecordBatch | pa.Table]"
Data: TypeAlias = "pa.Table | pa.RecordBatch | Frame | Sequence[Row] | Batches"

_PAUSE_FACTOR = 9.0  # while no caller waits, registration takes at most a tenth of a core
_SMALL = 256 << 10  # bytes; below, handing over to a thread costs more than the work


class StorageManager:
    """One per process is enough; safe for concurrent inserts in one event loop."""

    def __init__(
        self,
        context: ComponentContext,
        settings: StorageSettings | None = None,
        *,
        registrar: Registrar | None = None,
        objects: Objects | None = None,
        owner: str | None = None,
    ) -> None:
        """A given ``registrar`` or ``objects`` is not closed here. ``owner`` is the owner of the upload intents: the
        same for all managers whose files are registered together.
        """
        self.settings = settings or StorageSettings()
        self.clock = context.clock
        self.owner = owner or f"storage-manager {uuid4().hex}"
        self._store = context.store
        self._objects = objects or Objects(context.lake)
        self._shared_registrar = registrar
        self._registrar: Registrar | None = None
        self._handles = TableHandles(self._store, self.clock, self.settings.schema_age_s)
        self._names = UploadNames(self._store, self.clock, self.owner, self.settings.names_ahead)
        self._slots = asyncio.Semaphore(self.settings.parallel_files)
        self._pending = PendingInserts()
        self._removals: set[asyncio.Task[None]] = set()
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._registrar = self._shared_registrar
            if self._registrar is None:
                self._registrar = await stack.enter_async_context(
                    Registrar(self._store, self.clock, pause_factor=_PAUSE_FACTOR)
                )
            background = BackgroundTasks("storage manager", self.clock)
            background.supervise("renewal of upload intents", self._renew)
            stack.push_async_callback(background.stop)
            self._opened = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for what is in progress. After an error inside the block, other failures are only logged."""
        try:
            if error is None:
                await self.flush()
            else:
                await self._settled()
        finally:
            await self._opened.aclose()
            try:
                await self._names.give_back()
            except RegistryError as lost:
                log.warning("unused names left to the cleaner", error=str(lost))

    async def insert(
        self, table: str | int, data: Data, *, sync: bool | None = None, insert_id: str | None = None
    ) -> InsertResult:
        """All rows or none. ``table`` is ``database.name`` or ``name``, or an id.

        Asynchronous: returns when the files are durable and their registration is queued; await ``registered`` for the
        outcome. Synchronous: returns when they are registered. A cancelled insert leaves nothing, unless its
        registration was queued already: then it is carried out. Raises `RowsRefused` with row and column; nothing was
        written then.

        An insert with an ``insert_id`` is synchronous and takes effect once: if the table has one with this id, nothing
        is read or written, whatever the data, and the result has ``repeated``. The transaction that registers the files
        records the id.
        """
        if insert_id is not None:
            return await self._insert_once(table, data, insert_id)
        return await self._insert_new(table, data, sync, None)

    async def _insert_once(self, table: str | int, data: Data, insert_id: str) -> InsertResult:
        target = await self._handles.get(table, fresh=True)
        found = await self._store.get_insert(target.table.id, insert_id)
        if found is None:
            try:
                return await self._insert_new(table, data, True, insert_id)
            except AlreadyInserted:  # the first one ended meanwhile
                found = await self._store.get_insert(target.table.id, insert_id)
                if found is None:  # the table was dropped
                    raise
        repeated = RegistrationFuture(lambda: None)
        repeated.set_result([])
        return InsertResult(target.table.id, target.schema.version, [], repeated, found)

    async def _insert_new(self, table: str | int, data: Data, sync: bool | None, insert_id: str | None) -> InsertResult:
        data = await _from_frame(data)
        if not _is_whole(data):
            return await self._insert(await self._handles.get(table, fresh=True), data, sync, insert_id)
        target = await self._handles.get(table)
        try:
            return await self._insert(target, data, sync, insert_id)
        except RowsRefused:
            newest = await self._handles.get(table, fresh=True)
            if newest.schema.version == target.schema.version and newest.table.id == target.table.id:
                raise
            return await self._insert(newest, data, sync, insert_id)

    async def flush(self) -> None:
        """Returns when every insert so far is registered, or has failed and is cleaned up.

        Raises the first failure since the last flush that no caller has seen.
        """
        await self._settled()
        self._pending.raise_unobserved()

    def stream(self, table: str | int) -> InsertStream:
        """For rows that arrive a few at a time: `async with manager.stream(table) as stream`."""
        return InsertStream(self, table)

    async def target(self, table: str | int, *, fresh: bool = False) -> TableHandle:
        return await self._handles.get(table, fresh=fresh)

    async def prepare(self, data: pa.Table | Sequence[Row], target: TableHandle, first_row: int = 1) -> list[Part]:
        """Coerces rows and splits them by partition. In a thread if there are many."""
        if isinstance(data, pa.Table) and data.nbytes < _SMALL:
            return self._prepare(data, target, first_row)
        return await asyncio.to_thread(self._prepare, data, target, first_row)

    async def write_files(self, table: str | int | TableHandle, data: Data) -> list[FileDraft]:
        """Writes all rows to durable files, or none. Their intents belong to `owner`; the caller registers them."""
        target = table if isinstance(table, TableHandle) else await self._handles.get(table, fresh=True)
        upload = Upload(target, self._names, self._objects, self._slots)
        try:
            await self._feed(upload, target, data)
            return await upload.finish()
        except BaseException:
            await self._abandon(upload)
            raise

    async def store_files(self, target: TableHandle, parts: Sequence[Part]) -> InsertResult:
        """Writes prepared rows to files and registers these together."""
        upload = Upload(target, self._names, self._objects, self._slots)
        try:
            await upload.write(parts)
            return await self._register(target, upload)
        except BaseException:
            await self._abandon(upload)
            raise

    async def _insert(self, target: TableHandle, data: Data, sync: bool | None, insert_id: str | None) -> InsertResult:
        upload = Upload(target, self._names, self._objects, self._slots)
        try:
            await self._feed(upload, target, data)
            inserted = await self._register(target, upload, insert_id)
        except BaseException:
            await self._abandon(upload)
            raise
        if self.settings.sync if sync is None else sync:
            await asyncio.shield(inserted.registered)
        return inserted

    async def _feed(self, upload: Upload, target: TableHandle, given: Data) -> None:
        data = await _from_frame(given)
        if _is_whole(data):
            parts = await self.prepare(data, target)
            await upload.write([piece for part in parts for piece in divide(part, target, self._file_bytes)])
            return
        buffers = PartitionBuffers(target, self._file_bytes, self.settings.buffer_bytes)
        first_row = 1
        batches = iter(data)
        while (batch := await _next(batches)) is not None:
            if not isinstance(batch, pa.Table | pa.RecordBatch):
                raise _not_rows(f"an iterable of {type(batch).__name__}", "list(rows) makes a list of it")
            rows = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
            parts = await self.prepare(rows, target, first_row)
            await upload.write(buffers.add(parts, self.clock.monotonic()))
            first_row += rows.num_rows
        await upload.write(buffers.drain())

    async def _register(self, target: TableHandle, upload: Upload, insert_id: str | None = None) -> InsertResult:
        if self._registrar is None:
            raise RuntimeError("the storage manager is not open: use it as `async with StorageManager(...)`")
        drafts = await upload.finish()
        inserted = InsertResult(
            target.table.id, target.schema.version, drafts, RegistrationFuture(self._registrar.commit_now)
        )
        if not drafts:
            inserted.registered.set_result([])
            return inserted
        registration = Registration(table_id=target.table.id, files=drafts, intents_of=self.owner, insert_id=insert_id)
        result = await self._registrar.register(registration, sync=False)
        self._pending.follow(inserted, result, lambda error: self._undo(target, drafts, error))
        return inserted

    async def _undo(self, target: TableHandle, drafts: Sequence[FileDraft], error: BaseException) -> None:
        """Removes the files of a failed registration, unless it has happened: its response may be lost.

        Files whose intents are still ours are not registered; once the intents have another owner, they never will be.
        """
        if isinstance(error, NotFound):
            self._handles.forget(target.table.id)
        uris = [draft.file_path for draft in drafts]
        try:
            unregistered = await self._store.renew_intents(uris, owner=self.owner, new_owner=f"{self.owner}, abandoned")
        except RegistryError as lost:
            log.warning("files of a failed insert left to the cleaner", files=len(uris), error=str(lost))
            return
        await remove_uploads(self._store, self._objects, unregistered)

    async def _abandon(self, upload: Upload) -> None:
        """Runs to its end even if the caller is cancelled, then in the background."""

        async def abandon() -> None:
            await upload.stop()
            await remove_uploads(self._store, self._objects, upload.uris, upload.unconfirmed)

        await asyncio.shield(self._in_background(abandon()))

    def _in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        return task

    async def _settled(self) -> None:
        if self._registrar is not None:
            self._registrar.commit_now()
        await self._pending.settled()
        if self._removals:
            await asyncio.wait(self._removals)

    async def _renew(self) -> None:
        while True:
            await self.clock.sleep(self.settings.renew_every_s)
            try:
                await self._names.drop_unused()
                await self._store.renew_intents(None, owner=self.owner)
            except RegistryError as error:
                log.warning("upload intents could not be renewed", error=str(error))

    def _prepare(self, data: pa.Table | Sequence[Row], target: TableHandle, first_row: int) -> list[Part]:
        fill = self.settings.fill_missing
        if not isinstance(data, pa.Table):
            data = table_from_rows(data, target.schema, first_row=first_row, fill_missing=fill)
        return target.partitioning.split(coerce(data, target.schema, first_row=first_row, fill_missing=fill))

    @property
    def _file_bytes(self) -> int:
        return self.settings.target_file_bytes


async def _from_frame(data: Data) -> pa.Table | Sequence[Row] | Batches:
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Frame) and not isinstance(data, pa.Table | pa.RecordBatchReader):
        return await asyncio.to_thread(from_frame, data)
    return data


def _is_whole(data: pa.Table | Sequence[Row] | Batches) -> TypeGuard[pa.Table | pa.RecordBatch | Sequence[Row]]:
    """Returns whether all rows are in memory, so that they can be read twice."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return True
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        way = "collect() makes a data frame of it" if hasattr(data, "collect") else "pyarrow.table may make one of it"
        raise _not_rows(f"a {type(data).__name__}", way)
    return isinstance(data, Sequence) and not any(isinstance(row, pa.Table | pa.RecordBatch) for row in data[:1])


def _not_rows(given: str, way: str) -> TypeError:
    return TypeError(
        "rows are an Arrow table, a data frame of pandas or Polars, record batches or a list of mappings, not "
        f"{given}: {way}"
    )


async def _next(batches: Iterator[pa.RecordBatch | pa.Table]) -> pa.RecordBatch | pa.Table | None:
    """Reads a reader's next batch in a thread, because it may take long. A caller's iterator is not moved to another
    thread.
    """
    if isinstance(batches, pa.RecordBatchReader):
        return await asyncio.to_thread(next, batches, None)
    return next(batches, None)
