"""`Lake`: an `AsyncLake` for scripts and notebooks. Its event loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from components.api.async_lake import AsyncLake, Columns, InsertSummary, Records, open_async
from components.api.scan import Scan
from components.lib.storage_manager.manager import Data

if TYPE_CHECKING:
    from components.lib.streams.format import Record

T = TypeVar("T")


class Lake:
    """Works in a running event loop, too, such as that of Jupyter. Safe for use by several threads.

    Close it, or use it in a ``with`` block. The methods are those of `AsyncLake`, which documents them.
    """

    def __init__(self, opening: AbstractAsyncContextManager[AsyncLake]) -> None:
        opened: Future[tuple[AsyncLake, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, args=(opening, opened), name="astha lake", daemon=True)
        self._thread.start()
        try:
            self._lake, self._loop, self._closing = opened.result()
        except Exception:
            self._thread.join()
            raise

    def _serve(
        self,
        opening: AbstractAsyncContextManager[AsyncLake],
        opened: Future[tuple[AsyncLake, asyncio.AbstractEventLoop, asyncio.Event]],
    ) -> None:
        async def until_closed() -> None:
            closing = asyncio.Event()
            async with opening as lake:
                opened.set_result((lake, asyncio.get_running_loop(), closing))
                await closing.wait()

        try:
            asyncio.run(until_closed())
        except BaseException as error:
            (self._ended if opened.done() else opened).set_exception(error)
        else:
            self._ended.set_result(None)

    def tables(self) -> list[str]:
        return self._wait(self._lake.tables())

    def create_table(
        self,
        table: str,
        columns: Columns,
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        location: str | None = None,
        if_not_exists: bool = False,
    ) -> None:
        self._wait(
            self._lake.create_table(
                table,
                columns,
                partition_by=partition_by,
                sort_by=sort_by,
                properties=properties,
                location=location,
                if_not_exists=if_not_exists,
            )
        )

    def insert(self, table: str, data: Data | str | Path, *, id: str | None = None) -> InsertSummary:  # noqa: A002
        return self._wait(self._lake.insert(table, data, id=id))

    def wait_visible(self, table: str, *, timeout_s: float = 60.0) -> None:
        self._wait(self._lake.wait_visible(table, timeout_s=timeout_s))

    def scan(
        self,
        table: str,
        *,
        columns: Sequence[str] = ("*",),
        where: str | None = None,
        snapshot: str | int | None = None,
        limit: int | None = None,
    ) -> Scan:
        return self._wait(self._lake.scan(table, columns=columns, where=where, snapshot=snapshot, limit=limit))

    def snapshot(self, table: str, tag: str | None = None, *, timeout_s: float = 600.0) -> int:
        return self._wait(self._lake.snapshot(table, tag, timeout_s=timeout_s))

    def rollback(self, table: str, snapshot: str | int) -> int:
        return self._wait(self._lake.rollback(table, snapshot))

    def topics(self) -> list[str]:
        return self._wait(self._lake.topics())

    def create_topic(self, topic: str, partitions: int = 1, *, retention_ms: int | None = None) -> None:
        self._wait(self._lake.create_topic(topic, partitions, retention_ms=retention_ms))

    def produce(self, topic: str, records: Records, *, partition: int | None = None) -> int:
        return self._wait(self._lake.produce(topic, records, partition=partition))

    def consume(self, topic: str, *, group: str | None = None, max_records: int | None = None) -> Iterator[Record]:
        records: AsyncIterator[Record] = self._lake.consume(topic, group=group, max_records=max_records)
        while (record := self._wait(_next(records))) is not None:
            yield record

    def close(self) -> None:
        """Waits for what is in progress. Can be repeated."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
            self._ended.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """An interrupted caller cancels the work."""
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the lake is closed: connect again")
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except KeyboardInterrupt:
            running.cancel()
            raise


async def _next(records: AsyncIterator[T]) -> T | None:
    return await anext(records, None)


def connect(url: str | None = None, *, create: bool = False, config: str | Path | None = None) -> Lake:
    """Opens the lake of a registry: ``url``, or that of the settings (a file, the environment), which also name the
    storage. With ``create``, creates or migrates the registry first.
    """
    return Lake(open_async(url, create=create, config=config))
