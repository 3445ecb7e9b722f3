"""`Lake`: an `AsyncLake` for scripts and notebooks. Its event loop runs in a thread of its own.

The examples in the docstrings are one session, in the order of the methods, beside a daemon. A test runs them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from components.api.arguments import Records
from components.api.async_lake import AsyncLake, Columns, InsertSummary, open_async
from components.api.scan import Scan
from components.lib.storage_manager.manager import Data
from components.lib.storage_manager.readers import Format

if TYPE_CHECKING:
    from components.lib.streams.format import Record

T = TypeVar("T")


class Lake:
    """Tables and topics of one registry. Opened by `astha.connect`.

    Works in a running event loop, too, such as that of Jupyter. Safe for use by several threads. Close it, or use it in
    a ``with`` block.
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

    def __repr__(self) -> str:
        """Shows the registry, without passwords.

        >>> lake
        <Lake of sqlite:///...lake.db>
        """
        return repr(self._lake).replace(type(self._lake).__name__, type(self).__name__, 1)

    def tables(self) -> list[str]:
        """Returns the names of all tables, sorted.

        >>> lake.tables()
        []
        """
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
        """Creates a table. Raises AlreadyExists.

        ``columns`` are types by name (``!``: required), or an Arrow schema. ``properties`` are those of the table, such
        as its policy of compaction.

        >>> columns = {"id": "long!", "region": "string", "price": "decimal(9,2)", "at": "timestamptz"}
        >>> lake.create_table("shop.orders", columns, partition_by=["region"], sort_by=["id"])
        >>> lake.create_table("shop.stock", pa.schema({"id": pa.int64(), "left": pa.int32()}))
        >>> lake.tables()
        ['shop.orders', 'shop.stock']
        """
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

    def insert(
        self,
        table: str,
        data: Data | str | Path,
        *,
        id: str | None = None,  # noqa: A002
        format: Format | None = None,  # noqa: A002
    ) -> InsertSummary:
        """Inserts all rows or none, and returns when they are registered.

        ``data`` is an Arrow table or batches of one, a data frame of pandas or Polars, a DuckDB relation, a list of
        mappings, or the path of a Parquet, CSV or JSON file, whose ``format`` is that of its extension unless it is
        given. Raises `astha.RowsRefused` with row and column; nothing was written then.

        >>> lake.insert("shop.stock", pa.table({"id": [1, 2], "left": [5, None]}))
        InsertSummary(rows=2, files=1, repeated=False)
        >>> lake.insert("shop.stock", pandas.DataFrame({"id": [3, 4], "left": [7, None]})).rows
        2
        >>> lake.insert("shop.stock", polars.DataFrame({"id": [5], "left": [0]})).rows
        1
        >>> lake.insert("shop.stock", duckdb.sql("SELECT 6::BIGINT AS id, 1::INT AS left")).rows
        1
        >>> lake.insert("shop.stock", [{"id": 7, "left": "many"}])
        Traceback (most recent call last):
        components.lib.storage_manager.errors.RowsRefused: row 1, column 'left': 'many' (str) is not an int

        With ``id``, an insert that is repeated changes nothing, whatever the data. So a program that did not get the
        result, because it or its connection failed, calls it again:

        >>> order = {"id": 1, "region": "eu", "price": Decimal("9.90"), "at": datetime(2026, 11, 18, 9, tzinfo=UTC)}
        >>> lake.insert("shop.orders", [order], id="order-1")
        InsertSummary(rows=1, files=1, repeated=False)
        >>> lake.insert("shop.orders", [order], id="order-1")
        InsertSummary(rows=1, files=1, repeated=True)
        """
        return self._wait(self._lake.insert(table, data, id=id, format=format))

    def wait_visible(self, table: str, *, timeout_s: float = 60.0) -> None:
        """Returns when Iceberg has everything that was inserted before the call. Raises TimeoutError: a daemon with
        the component iceberg_updater makes it so.

        >>> lake.wait_visible("shop.orders")
        >>> lake.wait_visible("shop.stock")
        """
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
        """The rows that Iceberg has now, or those of a snapshot, by its id or tag. ``where`` is a filter in Iceberg's
        syntax, such as ``id > 5 and region = 'eu'``; only files that may match are read.

        >>> lake.scan("shop.orders", columns=["id", "price"], where="region = 'eu'").to_arrow().to_pylist()
        [{'id': 1, 'price': Decimal('9.90')}]
        """
        return self._wait(self._lake.scan(table, columns=columns, where=where, snapshot=snapshot, limit=limit))

    def snapshot(self, table: str, tag: str | None = None, *, timeout_s: float = 600.0) -> int:
        """Requests a snapshot that contains everything inserted before, and waits for it. Returns its id.

        Raises TimeoutError: the request stays, and a daemon with the component snapshotter fulfils it.

        >>> before = lake.snapshot("shop.stock", "before")
        >>> lake.insert("shop.stock", [{"id": 8, "left": -1}]).rows
        1
        >>> lake.wait_visible("shop.stock")
        >>> lake.scan("shop.stock").to_arrow().num_rows
        7
        >>> lake.scan("shop.stock", snapshot="before").to_arrow().num_rows
        6
        >>> lake.scan("shop.stock", snapshot=before, where="left is not null").to_arrow().num_rows
        4
        """
        return self._wait(self._lake.snapshot(table, tag, timeout_s=timeout_s))

    def rollback(self, table: str, snapshot: str | int) -> int:
        """Rolls the table back to the files of a snapshot, by its id or tag. Returns the change of its row count.

        Raises `CantRollBack` if a file of the snapshot is gone.

        >>> lake.rollback("shop.stock", "before")
        -1
        >>> lake.wait_visible("shop.stock")
        >>> lake.scan("shop.stock").to_arrow().num_rows
        6
        """
        return self._wait(self._lake.rollback(table, snapshot))

    def topics(self) -> list[str]:
        """Returns the names of all topics, sorted.

        >>> lake.topics()
        []
        """
        return self._wait(self._lake.topics())

    def create_topic(self, topic: str, partitions: int = 1, *, retention_ms: int | None = None) -> None:
        """Creates a topic; records older than ``retention_ms`` are deleted. Raises AlreadyExists.

        >>> lake.create_topic("clicks", partitions=2, retention_ms=7 * 86_400_000)
        >>> lake.topics()
        ['clicks']
        """
        self._wait(self._lake.create_topic(topic, partitions, retention_ms=retention_ms))

    def produce(self, topic: str, records: Records, *, partition: int | None = None) -> int:
        """Appends records in order, durable when it returns. Returns how many. A record's key decides its partition;
        records without one take turns.

        >>> lake.produce("clicks", ["one", b"two"])
        2
        >>> lake.produce("clicks", [astha.NewRecord(b"three", key=b"ann")], partition=1)
        1
        """
        return self._wait(self._lake.produce(topic, records, partition=partition))

    def consume(self, topic: str, *, group: str | None = None, max_records: int | None = None) -> Iterator[Record]:
        """Yields the records of all partitions up to their present ends; in order within a partition.

        >>> sorted(record.value for record in lake.consume("clicks"))
        [b'one', b'three', b'two']

        With a group, begins where it stopped, and commits what was yielded when the caller asks for more:

        >>> len(list(lake.consume("clicks", group="readers", max_records=2)))
        2
        >>> len(list(lake.consume("clicks", group="readers")))
        1
        >>> list(lake.consume("clicks", group="readers"))
        []
        """
        records: AsyncGenerator[Record, None] = self._lake.consume(topic, group=group, max_records=max_records)
        try:
            while (record := self._wait(_next(records))) is not None:
                yield record
        finally:
            if self._thread.is_alive():
                self._wait(records.aclose())

    def close(self) -> None:
        """Waits for what is in progress. Can be repeated.

        >>> lake.close()
        >>> lake.tables()
        Traceback (most recent call last):
        RuntimeError: the lake is closed: connect again
        """
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


def connect(
    url: str | None = None,
    *,
    create: bool = False,
    warehouse: str | Path | None = None,
    config: str | Path | None = None,
) -> Lake:
    """Opens the lake of a registry: ``url``, or that of the settings (a file, the environment), which also name the
    storage. With ``create``, creates or migrates the registry first.

    ``warehouse`` is where tables and the objects of topics go: a directory, or s3://bucket/prefix. The registry keeps
    it, so it is needed once at most; another one than the registry's is refused with ConfigError.

    >>> with astha.connect("sqlite:///other.db", create=True) as other:
    ...     other.tables()
    []
    """
    return Lake(open_async(url, create=create, warehouse=warehouse, config=config))
