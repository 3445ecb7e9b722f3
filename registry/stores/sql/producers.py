"""Producer sequences, checked and updated by the transaction that registers the producers' records."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, FromClause, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.contract import PAGE
from registry.errors import Invalid, OutOfSequence
from registry.inputs import ProducerDraft
from registry.models import ProducerSequence
from registry.schema import producer_sequences
from registry.stores.sql.base import SqlBase

_C = producer_sequences.c
_KEY = [_C.topic, _C.partition_id, _C.producer_id]
_COLUMNS = ProducerSequence.__struct_fields__


class SqlProducers(SqlBase):
    async def get_producer_sequences(self, keys: Sequence[tuple[str, int, str]]) -> list[ProducerSequence]:
        for topic, number, producer in keys:
            validation.name("topic", topic)
            validation.integer32("partition_id", number)
            validation.name("producer_id", producer)
        if not keys:
            return []
        given = self._bind_rows(_KEY, sorted(set(keys)))
        query = select(producer_sequences).join_from(producer_sequences, given, _same(given)).order_by(*_KEY)
        return await self._rows(ProducerSequence, query)

    async def forget_producers(self, idle_ms: int, *, limit: int = PAGE) -> int:
        validation.integer("idle_ms", idle_ms)
        validation.integer("limit", limit, 1)
        idle = select(*_KEY).where(_C.updated_at <= self._clock.now_ms() - idle_ms).order_by(_C.updated_at).limit(limit)
        given = idle.with_for_update(skip_locked=True).subquery("idle")
        return await self._write(delete(producer_sequences).where(select(given.c.topic).where(_same(given)).exists()))

    async def _require_sequences(self, connection: AsyncConnection, producers: Sequence[ProducerDraft]) -> set[str]:
        """Returns the names of producers that have a row. The caller holds the partitions' locks."""
        if not producers:
            return set()
        given = self._bind_rows(_KEY, [(p.topic, p.partition_id, p.producer_id) for p in producers])
        query = select(producer_sequences).join_from(producer_sequences, given, _same(given))
        rows = [ProducerSequence(*row) for row in await connection.execute(query)]
        known = {_name(row): row for row in rows}
        refused = [p for p in producers if (row := known.get(_name(p))) is not None and not continues(p, row)]
        if refused:
            raise out_of_sequence([(p.topic, p.partition_id, p.producer_id) for p in refused])
        return set(known)

    async def _move_sequences(
        self, connection: AsyncConnection, producers: Sequence[ProducerDraft], known: set[str], now: int
    ) -> None:
        moved = [_row(p, now) for p in producers if _name(p) in known]
        if moved:
            given = self._bind_rows(list(producer_sequences.c), moved)
            values = {name: given.c[name] for name in _COLUMNS[3:]}
            await connection.execute(update(producer_sequences).where(_same(given)).values(values))
        new = [_row(p, now) for p in producers if _name(p) not in known]
        await self._insert_many(connection, producer_sequences, _COLUMNS, new)


def check_producers(producers: Sequence[ProducerDraft], partitions: set[tuple[str, int]]) -> None:
    """Each producer once per partition, and only for partitions that get segments."""
    names = set()
    for producer in producers:
        if producer.last_sequence < producer.first_sequence:
            raise Invalid("last_sequence", producer.last_sequence, f"is below first_sequence {producer.first_sequence}")
        if (producer.topic, producer.partition_id) not in partitions:
            raise Invalid(
                "producer_id", producer.producer_id, f"this call adds no segment to the partition of {_name(producer)}"
            )
        names.add(_name(producer))
    if len(names) < len(producers):
        raise Invalid("producers", len(producers), "a producer appears twice for one partition: combine its appends")


def out_of_sequence(refused: Sequence[tuple[str, int, str]]) -> OutOfSequence:
    topic, number, producer = refused[0]
    return OutOfSequence(
        f"the records of producer {producer!r} do not continue its sequence in partition {number} of topic {topic!r}: "
        "read get_producer_sequences",
        [f"{topic}/{number}" for topic, number, _ in refused],
    )


def continues(producer: ProducerDraft, row: ProducerSequence) -> bool:
    return producer.epoch > row.epoch or (
        producer.epoch == row.epoch and producer.first_sequence == row.last_sequence + 1
    )


def _name(item: ProducerDraft | ProducerSequence) -> str:
    return f"{item.topic}/{item.partition_id}/{item.producer_id}"


def _row(producer: ProducerDraft, now: int) -> tuple[object, ...]:
    return (
        producer.topic, producer.partition_id, producer.producer_id, producer.epoch, producer.last_sequence,
        producer.base_offset, producer.record_count, now,
    )  # fmt: skip


def _same(given: FromClause) -> ColumnElement[bool]:
    return (
        (_C.topic == given.c.topic)
        & (_C.partition_id == given.c.partition_id)
        & (_C.producer_id == given.c.producer_id)
    )
