"""The refresh of layout `tables`: all rows, then tombstones for the keys whose rows no longer exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import structlog

from astha.subscribers import PUBLISHED, ConsistentRead, Position, Row
from components.kafka_sink.client import KafkaClients
from components.kafka_sink.errors import NotAcknowledged
from components.kafka_sink.outbox import Outbox
from components.kafka_sink.settings import KafkaSinkSettings
from components.kafka_sink.table_records import TableRecords
from components.kafka_sink.topic_keys import TopicKeys, TopicReader
from components.kafka_sink.worker import Worker
from components.lib.change_formats import Origin

log = structlog.get_logger(__name__)


class TableRefresh:
    """One refresh. After a failure another one starts from the beginning: what was sent already is sent again."""

    def __init__(
        self,
        settings: KafkaSinkSettings,
        clients: KafkaClients,
        worker: Worker,
        outbox: Outbox,
        records: TableRecords,
        progress: Callable[[str, int], None],
    ) -> None:
        self._settings = settings
        self._clients = clients
        self._worker = worker
        self._outbox = outbox
        self._records = records
        self._progress = progress
        self._counts: Counter[str] = Counter()

    async def run(
        self, snapshot: ConsistentRead, partitions: Mapping[str, int], origin: Origin, position: Position
    ) -> None:
        """`partitions`: their number, by table. The topics are read before the first row is sent."""
        tables = frozenset(partitions)
        await self._worker.run(self._settle)
        keys = await self._worker.run(TopicKeys)
        try:
            await self._worker.run(self._read_keys, keys, partitions)
            await self._worker.run(self._begin, position)
            async for rows, ends in _pages(snapshot, tables):
                await self._worker.run(self._send_rows, keys, rows, origin, position, ends)
            await self._worker.run(self._bury, keys, sorted(tables), origin, position)
            await self._worker.run(self._finish, position)
        finally:
            await self._worker.clean_up(keys.close)
        log.info("topics refreshed", rows=self._counts.total(), position=position)

    def _settle(self) -> None:
        """Waits for the records of earlier deliveries: none of them may arrive after the topics have been read."""
        self._outbox.begin()
        try:
            self._outbox.wait()
        except NotAcknowledged:
            self._outbox.abandon()
            raise
        finally:
            self._outbox.forget()

    def _read_keys(self, keys: TopicKeys, partitions: Mapping[str, int]) -> None:
        topics = {self._settings.topic_of(table): count for table, count in partitions.items()}
        reader = TopicReader(self._settings, self._clients.consumer, topics, self._worker.interrupted)
        reader.read(keys, lambda count: self._progress("refresh_keys", count))

    def _send_rows(self, keys: TopicKeys, rows: Sequence[Row], origin: Origin, position: Position, ends: bool) -> None:
        table = rows[0].table
        sent = self._records.send_rows(rows, origin, position, ends)
        keys.remove(self._settings.topic_of(table), sent)
        self._counts[table] += len(rows)
        self._progress("refresh_rows", len(rows))

    def _bury(self, keys: TopicKeys, tables: Sequence[str], origin: Origin, position: Position) -> None:
        for table in tables:
            for page in keys.pages(self._settings.topic_of(table)):
                self._records.send_tombstones(table, page, origin, position)
                self._progress("refresh_tombstones", len(page))

    def _begin(self, position: Position) -> None:
        """Waits: the marker's partition is another one than those of the rows, which must not arrive before it."""
        self._outbox.extend()
        self._records.send_refresh_marker("BEGIN", position, Counter())
        self._outbox.wait()

    def _finish(self, position: Position) -> None:
        """Sends END when every row is acknowledged: a reader may then delete the rows that it has not seen."""
        self._outbox.extend()
        self._outbox.wait()
        self._outbox.extend()
        self._records.send_refresh_marker("END", position, self._counts)
        self._outbox.wait()


async def _pages(snapshot: ConsistentRead, tables: frozenset[str]) -> AsyncIterator[tuple[Sequence[Row], bool]]:
    """Yields pages of one table each, and whether it is the last one."""
    previous: Sequence[Row] = ()
    for kind in PUBLISHED:
        if kind.table not in tables:
            continue
        async for page in snapshot.rows(kind):
            if previous:
                yield previous, False
            previous = page
    if previous:
        yield previous, True
