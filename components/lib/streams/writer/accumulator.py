"""Appends on their way, gathered by partition; and what is known of their producers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec

from components.lib.streams.agents import HeldLease
from components.lib.streams.errors import Duplicate, OutOfOrder
from components.lib.streams.format import Columns
from components.lib.streams.writer.settings import WriterSettings
from registry.inputs import ProducerDraft
from registry.models import ProducerSequence

_AT_ONCE = float("-inf")
_TRIES = 8  # to find a producer to be forgotten: more than one for each that comes
_REMEMBERED = 5  # appends of each producer whose repetition is answered with offsets


class Appended(msgspec.Struct, frozen=True):
    """Durable records ``base_offset..base_offset+count-1``."""

    topic: str
    partition_id: int
    base_offset: int
    count: int

    @property
    def offsets(self) -> range:
        return range(self.base_offset, self.base_offset + self.count)


class AppendId(msgspec.Struct, frozen=True):
    """By which a repeated append is known: ``sequence`` is the number of its first record, counted by the producer for
    each partition, without gaps. A higher epoch begins anew and ends the earlier one.
    """

    producer_id: str
    sequence: int
    epoch: int = 0


class Append:
    __slots__ = ("columns", "held", "result", "size", "stamp")

    def __init__(self, held: HeldLease, columns: Columns, size: int, stamp: AppendId | None) -> None:
        self.held = held
        self.columns = columns
        self.size = size
        self.stamp = stamp
        self.result: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    def succeed(self, base_offset: int) -> None:
        if not self.result.done():
            self.result.set_result(Appended(*self.held.key, base_offset, len(self.columns)))

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)
            self.result.exception()  # seen: whoever waited may have gone


class PartitionAppends:
    """What an object holds of one partition: appends in order."""

    __slots__ = ("appends", "held")

    def __init__(self, held: HeldLease) -> None:
        self.held = held
        self.appends: list[Append] = []

    @property
    def columns(self) -> Columns:
        return Columns.joined([append.columns for append in self.appends])

    def succeed(self, base_offset: int) -> None:
        for append in self.appends:
            append.succeed(base_offset)
            base_offset += len(append.columns)

    def fail(self, error: Exception) -> None:
        for append in self.appends:
            append.fail(error)

    def producers(self, base_offset: int) -> list[ProducerDraft]:
        """What this part moves them to, if it begins there."""
        found: dict[str, ProducerDraft] = {}
        for append in self.appends:
            count, stamp = len(append.columns), append.stamp
            if stamp is not None:
                before = found.get(stamp.producer_id)
                first = before.first_sequence if before is not None and before.epoch == stamp.epoch else stamp.sequence
                last = stamp.sequence + count - 1
                found[stamp.producer_id] = ProducerDraft(
                    *self.held.key, stamp.producer_id, stamp.epoch, first, last, base_offset, count
                )
            base_offset += count
        return list(found.values())


class ProducerState:
    """A producer in one partition, with what is on its way."""

    __slots__ = ("_recent", "epoch", "last")

    def __init__(self, row: ProducerSequence | None) -> None:
        self.epoch = -1 if row is None else row.epoch
        self.last = -1 if row is None else row.last_sequence
        self._recent: deque[tuple[int, int, asyncio.Future[Appended]]] = deque(maxlen=_REMEMBERED)
        if row is not None:
            result: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            result.set_result(Appended(row.topic, row.partition_id, row.last_base_offset, row.last_count))
            self._recent.append((row.last_sequence - row.last_count + 1, row.last_count, result))

    def repeated(self, stamp: AppendId, count: int) -> asyncio.Future[Appended] | None:
        """The result of the append that this one repeats; None if it is new. OutOfOrder if it is neither."""
        who = f"producer {stamp.producer_id!r}, epoch {stamp.epoch}, sequence {stamp.sequence}"
        if stamp.epoch > self.epoch:
            return None
        if stamp.epoch < self.epoch:
            raise OutOfOrder(f"{who}: epoch {self.epoch} has begun: another instance of the producer is at work")
        if stamp.sequence == self.last + 1:
            return None
        for first, length, result in self._recent:
            if (first, length) == (stamp.sequence, count):
                return result
        if stamp.sequence + count - 1 <= self.last:
            raise Duplicate(f"{who}: was written already; which offsets it got is no longer known")
        raise OutOfOrder(f"{who}: the next one would be {self.last + 1}")

    @property
    def idle(self) -> bool:
        """Whether nothing of it is on its way: the registry knows as much."""
        return all(result.done() for _, _, result in self._recent)

    def note(self, stamp: AppendId, count: int, result: asyncio.Future[Appended]) -> None:
        if stamp.epoch != self.epoch:
            self._recent.clear()
        self.epoch = stamp.epoch
        self.last = stamp.sequence + count - 1
        self._recent.append((stamp.sequence, count, result))


class ProducerStates:
    """Those of one partition, the last used at the end. A forgotten one is read from the registry again: of it only the
    last append can be told from a new one then.
    """

    def __init__(self, most: int = 10_000) -> None:
        self._known: OrderedDict[str, ProducerState] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._known)

    def find(self, producer_id: str) -> ProducerState | None:
        known = self._known.get(producer_id)
        if known is not None:
            self._known.move_to_end(producer_id)
        return known

    def add(self, producer_id: str, known: ProducerState) -> ProducerState:
        """Returns the one that is kept, if another call has added it meanwhile."""
        kept = self._known.setdefault(producer_id, known)
        self._known.move_to_end(producer_id)
        for _ in range(_TRIES):
            if len(self._known) <= self._most:
                break
            oldest = next(iter(self._known))
            if self._known[oldest].idle:
                del self._known[oldest]
            else:  # the registry does not know yet what is on its way
                self._known.move_to_end(oldest)
        return kept


class Window:
    """Appends of all partitions that go to storage together."""

    def __init__(self, opened_at: float = 0.0, *, behind: bool = False) -> None:
        self.parts: dict[HeldLease, PartitionAppends] = {}
        self.appends = 0
        self.size = 0
        self.opened_at = opened_at
        self.joined_at = opened_at  # by the last append
        self.behind = behind  # others were on their way when it was opened

    def add(self, append: Append, now: float) -> None:
        part = self.parts.get(append.held)
        if part is None:
            part = self.parts[append.held] = PartitionAppends(append.held)
        part.appends.append(append)
        self.appends += 1
        self.size += append.size
        self.joined_at = now

    def __bool__(self) -> bool:
        return bool(self.parts)

    def closes_at(self, settings: WriterSettings, *, flying: bool) -> float:
        """If nothing else comes or lands until then. ``flying``: others are on their way still."""
        end = self.opened_at + settings.window_s
        if self.size >= settings.object_bytes:
            return _AT_ONCE
        if flying:
            return end
        enough = self.appends >= settings.enough_appends or self.size >= settings.block_bytes
        if enough or not self.behind:
            return _AT_ONCE
        return min(end, self.joined_at + settings.linger_s)

    def objects(self, most_segments: int) -> list[Sequence[PartitionAppends]]:
        parts = list(self.parts.values())
        return [parts[start : start + most_segments] for start in range(0, len(parts), most_segments)]
