"""Topics as a Spark data source, in batches and streams, read directly from storage.

    spark.read.format("astha").option("topic", "orders").option("from", "-1h").load()
    spark.readStream.format("astha").option("topic", "orders").load()

Options: ``topic``; ``partitions``, such as 0,3; ``from`` and ``to`` (earliest, latest, an offset, a time, -15m), or
``offsets``, as {"0": [first, next], ...}; ``columns`` to read; ``split_bytes``, stored bytes per task; ``registry``,
``config`` and any setting by its name, as for inserts. The driver reads the segments from the registry; tasks access
only storage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from astha.clock import SystemLoopClock
from astha.errors import ConfigError
from astha.settings import Settings, load_settings
from astha.subscribers.context import LakeSettings
from astha.wiring import context
from components.lib.lake.storage.objects import Objects
from components.lib.streams.errors import OffsetTooOld
from components.lib.streams.format import decode_block, partition_tag
from components.lib.streams.offset_spec import OffsetSpec, parse_offset_spec, resolve_offsets
from components.lib.streams.offsets import first_retained_offset
from components.lib.streams.pushdown import UNBOUNDED, ScanBounds
from components.lib.streams.read_context import ReadContext, open_read_context
from components.lib.streams.reader.block_cache import adjacent_runs
from components.lib.streams.reader.blocks import PlannedBlock, SegmentLayout
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.models import Segment

T = TypeVar("T")

COLUMNS = {
    "partition": "int not null",
    "offset": "bigint not null",
    "timestamp": "timestamp not null",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<name: string not null, value: binary>>",
}
SPLIT_BYTES = 32 << 20
_REQUEST_BYTES = 8 << 20


@dataclass(frozen=True)
class SegmentSplit(InputPartition):
    """The input of one task: segments, of which it reads ``start..stop-1``."""

    segments: tuple[Segment, ...]
    start: int
    stop: int

    def __init__(self, segments: tuple[Segment, ...], start: int, stop: int) -> None:
        object.__setattr__(self, "segments", segments)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "stop", stop)


@dataclass(frozen=True)
class TopicScan:
    """One `load`, as it is sent to the tasks."""

    topic: str
    partitions: tuple[int, ...]
    start: OffsetSpec
    stop: OffsetSpec
    columns: tuple[str, ...]
    split_bytes: int
    settings: Settings
    ranges: Mapping[int, tuple[int, int]] | None = None  # instead of start and stop: the first offset and the next one
    bounds: ScanBounds = UNBOUNDED

    @classmethod
    def from_options(cls, options: Mapping[str, str], settings: Settings | None = None) -> TopicScan:
        """Uses the given settings, or loads those that the options name."""
        topic = options.get("topic")
        if not topic:
            raise ConfigError('name the topic to read: .option("topic", "orders")')
        columns = tuple(name.strip() for name in options.get("columns", ",".join(COLUMNS)).split(","))
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown:
            raise ConfigError(f"columns: there is no {unknown[0]!r}: choose among {', '.join(COLUMNS)}")
        numbers = tuple(int(number) for number in options.get("partitions", "").split(",") if number.strip())
        start, stop = parse_offset_spec(options.get("from", "earliest")), parse_offset_spec(options.get("to", "latest"))
        size = int(options.get("split_bytes", SPLIT_BYTES))
        ranges = _ranges(options["offsets"]) if "offsets" in options else None
        chosen = _settings(options) if settings is None else settings
        return cls(topic, numbers, start, stop, columns, size, chosen, ranges)

    @property
    def schema(self) -> str:
        return ", ".join(f"{name} {COLUMNS[name]}" for name in self.columns)

    def with_read_context(self, work: Callable[[ReadContext], Awaitable[T]]) -> T:
        """Runs `work` with access to the registry. Only on the driver."""

        async def run() -> T:
            clock = SystemLoopClock()
            registry = self.settings.registry
            store = await open_store(registry.url.get_secret_value(), settings=registry.store, clock=clock)
            try:
                component_context = context(self.settings, store, clock)
                async with open_read_context(component_context, self.settings, follow=False) as read_context:
                    return await work(read_context)
            finally:
                await store.close()

        return asyncio.run(run())

    async def offsets(self, read_context: ReadContext, spec: OffsetSpec) -> dict[int, int]:
        numbers = self.partitions or [row.partition_id for row in await read_context.store.list_partitions(self.topic)]
        return await resolve_offsets(read_context.reader, self.topic, list(numbers), spec)

    async def splits(
        self, read_context: ReadContext, start: Mapping[int, int], stop: Mapping[int, int]
    ) -> list[SegmentSplit]:
        """Groups adjacent segments into tasks of about `split_bytes`."""
        found: list[SegmentSplit] = []
        for number, end in stop.items():
            found += await self._partition_splits(read_context.store.inner, number, start.get(number, 0), end)
        return found

    async def _partition_splits(self, store: MetadataStore, number: int, first: int, end: int) -> list[SegmentSplit]:
        """Segments may be merged between two pages of the query: offsets that were taken are skipped. They may also be
        deleted, oldest first, so that is checked last.
        """
        found: list[SegmentSplit] = []
        current: list[Segment] = []
        size, begin, reached = 0, first, first
        async for segment in store.stream_segments(self.topic, number, from_offset=first):
            if segment.base_offset >= end:
                break
            if segment.end_offset < reached:
                continue
            if current and (segment.base_offset < reached or size + segment.size_bytes > self.split_bytes):
                found.append(SegmentSplit(tuple(current), begin, end))
                current, size = [], 0
            if self.bounds.may_contain(segment):
                begin = begin if current else reached
                current.append(segment)
                size += segment.size_bytes
            reached = segment.end_offset + 1
        if current:
            found.append(SegmentSplit(tuple(current), begin, end))
        await self._require_retained(store, number, first, end)
        return found

    async def _require_retained(self, store: MetadataStore, number: int, offset: int, end: int) -> None:
        """Raises OffsetTooOld rather than return fewer records than requested."""
        first = await first_retained_offset(store, self.topic, number, end)
        if offset < min(first, end):
            raise OffsetTooOld(self.topic, number, offset, first)


class TopicReader(DataSourceReader):
    def __init__(self, scan: TopicScan, schema: StructType) -> None:
        self._scan = scan
        self._schema = schema

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        """Uses filters on partition, offset and timestamp as bounds. Spark evaluates all of them again."""
        self._scan = replace(self._scan, bounds=self._scan.bounds.narrowed(filters))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        scan = self._scan

        async def plan(read_context: ReadContext) -> list[SegmentSplit]:
            if scan.ranges is None:
                start, stop = await scan.offsets(read_context, scan.start), await scan.offsets(read_context, scan.stop)
            else:
                start = {number: first for number, (first, _) in scan.ranges.items()}
                stop = {number: end for number, (_, end) in scan.ranges.items()}
            return await scan.splits(read_context, *scan.bounds.clip(start, stop))

        return self._scan.with_read_context(plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SegmentSplit):  # Spark's placeholder for an empty scan
            return iter(())
        return read_split(partition, self._scan, to_arrow_schema(self._schema))


class TopicStreamReader(DataSourceStreamReader):
    """Offsets are those of the partitions, kept in Spark's checkpoint."""

    def __init__(self, scan: TopicScan, schema: StructType) -> None:
        self._scan = scan
        self._schema = schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return self._offsets(self._scan.start)

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        return self._offsets("latest")

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        first, last = ({int(number): offset for number, offset in offsets.items()} for offsets in (start, end))
        return self._scan.with_read_context(lambda read_context: self._scan.splits(read_context, first, last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Returns a list's iterator, because Spark pickles it."""
        if not isinstance(partition, SegmentSplit):
            return iter(())
        return iter(list(read_split(partition, self._scan, to_arrow_schema(self._schema))))

    def _offsets(self, spec: OffsetSpec) -> dict[str, int]:
        found = self._scan.with_read_context(lambda read_context: self._scan.offsets(read_context, spec))
        return {str(number): offset for number, offset in found.items()}


def read_split(split: SegmentSplit, scan: TopicScan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the records of one task, by ranged requests for the blocks that contain its offsets."""
    layout = SegmentLayout()
    plans = []
    for segment in split.segments:
        first = max(segment.base_offset, split.start)
        plans += [plan for plan in layout.blocks(segment, first) if plan.first_offset < split.stop]
    planned = {plan.address: plan for plan in plans}
    for run in adjacent_runs(list(planned), _REQUEST_BYTES):
        start = run[0].start
        data = memoryview(_fetch(scan.settings.lake, run[0].uri, start, run[-1].end - start))
        for address in run:
            part = data[address.start - start : address.end - start]
            yield _batch(planned[address], part, split, scan, schema)


def _batch(
    plan: PlannedBlock, data: memoryview, split: SegmentSplit, scan: TopicScan, schema: pa.Schema
) -> pa.RecordBatch:
    segment = plan.segment
    tag = partition_tag(segment.topic, segment.partition_id)
    uri, start = plan.address.uri, plan.address.start
    batch = decode_block(data, base_offset=segment.base_offset, tag=tag, uri=uri, start=start)
    batch = batch.from_offset(split.start)[: max(0, split.stop - max(split.start, batch.first_offset))]
    number = pa.repeat(pa.scalar(segment.partition_id, pa.int32()), len(batch))
    columns = [number if name == "partition" else batch.arrow_column(name) for name in scan.columns]
    cast = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def _fetch(lake: LakeSettings, uri: str, start: int, length: int) -> bytes:
    return asyncio.run(Objects(lake).get_range(uri, start, length))


def _ranges(text: str) -> dict[int, tuple[int, int]]:
    try:
        return msgspec.json.decode(text, type=dict[int, tuple[int, int]])
    except msgspec.MsgspecError as error:
        raise ConfigError(f'offsets: {error}: write {{"0": [first, next], ...}}') from error


def _settings(options: Mapping[str, str]) -> Settings:
    flags: dict[str, Any] = {}
    for name, value in options.items():
        if "." in name:
            *groups, last = name.split(".")
            section = flags
            for group in groups:
                section = section.setdefault(group, {})
            section[last] = value
    if options.get("registry"):
        flags.setdefault("registry", {})["url"] = options["registry"]
    config = options.get("config")
    return load_settings(Path(config) if config else None, flags)
