"""Accumulates appends per partition in windows, and keeps the state of their producers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec

from components.lib.streams.agents import HeldLease
from components.lib.streams.errors import Duplicate, OutOfOrder
from components.lib.streams.format import RecordColumns
from components.lib.streams.writer.settings import WriterSettings
from registry.inputs import ProducerDraft
from registry.models import ProducerSequence

_IMMEDIATELY = float("-inf")
_EVICTION_TRIES = 8  # to find an idle producer to evict; more than one per added producer
_REMEMBERED_APPENDS = 5  # appends per producer whose repetition returns the offsets of the first


class Appended(msgspec.Struct, frozen=True):
    """The durable records ``base_offset..base_offset+count-1``."""

    topic: str
    partition_id: int
    base_offset: int
    count: int

    @property
    def offsets(self) -> range:
        return range(self.base_offset, self.base_offset + self.count)


class AppendId(msgspec.Struct, frozen=True):
    """Identifies an append, so that its repetition is recognised.

    ``sequence`` is the number of its first record, counted by the producer per partition, without gaps. A higher epoch
    starts a new count and fences the earlier epoch.
    """

    producer_id: str
    sequence: int
    epoch: int = 0


class Append:
    __slots__ = ("append_id", "columns", "lease", "result", "size")

    def __init__(self, lease: HeldLease, columns: RecordColumns, size: int, append_id: AppendId | None) -> None:
        self.lease = lease
        self.columns = columns
        self.size = size
        self.append_id = append_id
        self.result: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    def succeed(self, base_offset: int) -> None:
        if not self.result.done():
            self.result.set_result(Appended(*self.lease.key, base_offset, len(self.columns)))

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)
            self.result.exception()  # marks it as retrieved: the caller may be cancelled


class PartitionAppends:
    """The appends to one partition in a window, in order."""

    __slots__ = ("appends", "lease")

    def __init__(self, lease: HeldLease) -> None:
        self.lease = lease
        self.appends: list[Append] = []

    @property
    def columns(self) -> RecordColumns:
        return RecordColumns.joined([append.columns for append in self.appends])

    def succeed(self, base_offset: int) -> None:
        for append in self.appends:
            append.succeed(base_offset)
            base_offset += len(append.columns)

    def fail(self, error: Exception) -> None:
        for append in self.appends:
            append.fail(error)

    def producers(self, base_offset: int) -> list[ProducerDraft]:
        """Returns the producers' new sequences, if the first record gets `base_offset`."""
        found: dict[str, ProducerDraft] = {}
        for append in self.appends:
            count, append_id = len(append.columns), append.append_id
            if append_id is not None:
                before = found.get(append_id.producer_id)
                first = (
                    before.first_sequence
                    if before is not None and before.epoch == append_id.epoch
                    else append_id.sequence
                )
                last_sequence = append_id.sequence + count - 1
                found[append_id.producer_id] = ProducerDraft(
                    *self.lease.key, append_id.producer_id, append_id.epoch, first, last_sequence, base_offset, count
                )
            base_offset += count
        return list(found.values())


class ProducerState:
    """The state of a producer in one partition, pending appends included."""

    __slots__ = ("_recent", "epoch", "last_sequence")

    def __init__(self, row: ProducerSequence | None) -> None:
        self.epoch = -1 if row is None else row.epoch
        self.last_sequence = -1 if row is None else row.last_sequence
        self._recent: deque[tuple[int, int, asyncio.Future[Appended]]] = deque(maxlen=_REMEMBERED_APPENDS)
        if row is not None:
            result: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            result.set_result(Appended(row.topic, row.partition_id, row.last_base_offset, row.last_count))
            self._recent.append((row.last_sequence - row.last_count + 1, row.last_count, result))

    def find_repeated(self, append_id: AppendId, count: int) -> asyncio.Future[Appended] | None:
        """Returns the result of the append that this one repeats, or None if it is new. Raises OutOfOrder if it is
        neither.
        """
        described = f"producer {append_id.producer_id!r}, epoch {append_id.epoch}, sequence {append_id.sequence}"
        if append_id.epoch > self.epoch:
            return None
        if append_id.epoch < self.epoch:
            raise OutOfOrder(f"{described}: epoch {self.epoch} has begun: another instance of the producer is writing")
        if append_id.sequence == self.last_sequence + 1:
            return None
        for first, length, result in self._recent:
            if (first, length) == (append_id.sequence, count):
                return result
        if append_id.sequence + count - 1 <= self.last_sequence:
            raise Duplicate(f"{described}: was written already, its offsets are no longer known")
        raise OutOfOrder(f"{described}: the next sequence is {self.last_sequence + 1}")

    @property
    def idle(self) -> bool:
        """Whether no append is pending: then the registry has the same state."""
        return all(result.done() for _, _, result in self._recent)

    def remember(self, append_id: AppendId, count: int, result: asyncio.Future[Appended]) -> None:
        if append_id.epoch != self.epoch:
            self._recent.clear()
        self.epoch = append_id.epoch
        self.last_sequence = append_id.sequence + count - 1
        self._recent.append((append_id.sequence, count, result))


class ProducerStates:
    """The producers of one partition, by last use. An evicted one is read from the registry again, which remembers only
    its last append.
    """

    def __init__(self, max_size: int = 10_000) -> None:
        self._states: OrderedDict[str, ProducerState] = OrderedDict()
        self._max_size = max_size

    def __len__(self) -> int:
        return len(self._states)

    def find(self, producer_id: str) -> ProducerState | None:
        state = self._states.get(producer_id)
        if state is not None:
            self._states.move_to_end(producer_id)
        return state

    def add(self, producer_id: str, state: ProducerState) -> ProducerState:
        """Returns the state that is kept: a concurrent call may have added one before."""
        kept = self._states.setdefault(producer_id, state)
        self._states.move_to_end(producer_id)
        for _ in range(_EVICTION_TRIES):
            if len(self._states) <= self._max_size:
                break
            oldest = next(iter(self._states))
            if self._states[oldest].idle:
                del self._states[oldest]
            else:  # the registry does not know its pending appends
                self._states.move_to_end(oldest)
        return kept


class Window:
    """Appends to all partitions that are uploaded together."""

    def __init__(self, opened_at: float = 0.0, *, opened_during_upload: bool = False) -> None:
        self.parts: dict[HeldLease, PartitionAppends] = {}
        self.appends = 0
        self.size = 0
        self.opened_at = opened_at
        self.last_append_at = opened_at
        self.opened_during_upload = opened_during_upload  # uploads were in flight when it was opened

    def add(self, append: Append, now: float) -> None:
        part = self.parts.get(append.lease)
        if part is None:
            part = self.parts[append.lease] = PartitionAppends(append.lease)
        part.appends.append(append)
        self.appends += 1
        self.size += append.size
        self.last_append_at = now

    def __bool__(self) -> bool:
        return bool(self.parts)

    def closes_at(self, settings: WriterSettings, *, uploads_in_flight: bool) -> float:
        """Returns when to upload the window, unless an append comes or an upload ends before."""
        end = self.opened_at + settings.window_s
        if self.size >= settings.object_bytes:
            return _IMMEDIATELY
        if uploads_in_flight:
            return end
        enough = self.appends >= settings.target_appends or self.size >= settings.block_bytes
        if enough or not self.opened_during_upload:
            return _IMMEDIATELY
        return min(end, self.last_append_at + settings.linger_s)

    def objects(self, max_segments: int) -> list[Sequence[PartitionAppends]]:
        parts = list(self.parts.values())
        return [parts[start : start + max_segments] for start in range(0, len(parts), max_segments)]
