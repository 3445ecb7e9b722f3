"""How far consumer groups are behind, for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from astha.subscribers import ConsumerOffset, Metric
from registry.contract import MetadataStore

_MOST = 500
"""Series per metric: with more pairs of group and topic, those with the largest lag."""


class GroupLag(msgspec.Struct):
    """The lag of one consumer group in one topic, over the partitions that it has committed."""

    group: str
    topic: str
    records: int = 0
    idle_since_ms: int | None = None  # the oldest commit of a partition that has lag

    def add(self, offset: ConsumerOffset, end: int) -> None:
        behind = max(0, end - offset.committed_offset)
        self.records += behind
        if behind and (self.idle_since_ms is None or offset.committed_at < self.idle_since_ms):
            self.idle_since_ms = offset.committed_at


async def read_lag(store: MetadataStore) -> list[GroupLag]:
    """Reads all committed offsets, page by page. Records that retention has deleted unread count as lag."""
    found: dict[tuple[str, str], GroupLag] = {}
    async with store.consistent_read() as snapshot:
        async for page in snapshot.rows(ConsumerOffset):
            await _add_page(store, page, found)
    return list(found.values())


async def _add_page(
    store: MetadataStore, page: Sequence[ConsumerOffset], found: dict[tuple[str, str], GroupLag]
) -> None:
    keys = sorted({(row.topic, row.partition_id) for row in page})
    ends = {(row.topic, row.partition_id): row.high_watermark for row in await store.get_partitions(keys)}
    for row in page:
        end = ends.get((row.topic, row.partition_id))
        if end is not None:  # otherwise the topic was deleted meanwhile
            lag = found.setdefault((row.group_id, row.topic), GroupLag(row.group_id, row.topic))
            lag.add(row, end)


def lag_metrics(lags: Iterable[GroupLag], now_ms: int) -> Iterator[Metric]:
    for lag in sorted(lags, key=lambda lag: -lag.records)[:_MOST]:
        labels = {"consumer_group": lag.group, "topic": lag.topic}
        help_text = "Records that a consumer group has not committed, in the partitions that it has committed before."
        yield Metric("consumer_lag_records", help_text, lag.records, labels)
        help_text = "Time since the oldest commit among the partitions with lag; 0 without lag."
        idle_s = 0.0 if lag.idle_since_ms is None else max(0.0, (now_ms - lag.idle_since_ms) / 1000)
        yield Metric("consumer_idle_seconds", help_text, idle_s, labels)
