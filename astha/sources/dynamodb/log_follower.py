"""Follows the commit log from a mark on, by looking at the number of the last commit again and again.

Right after a commit it looks often, then less and less often, up to `poll_s`. A table's stream would not help: it can
only be polled, too, shard by shard (decision 0035).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.events import Transaction
from astha.sources.contract import Progress
from astha.sources.dynamodb.decode import EntryDecoder
from registry.errors import RegistryError
from registry.position import Position
from registry.stores.dynamodb.commit_log import CommitLog, LogBroken, Mark

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 0.01
_SLOWER = 1.3
_BATCH_BYTES = 1024 * 1024
_RETRY = Backoff(initial_s=0.1, max_s=5.0)
_SMOOTHING = 0.05


class LogFollower:
    def __init__(self, commit_log: CommitLog, decoder: EntryDecoder, clock: LoopClock, poll_s: float) -> None:
        self.failure: str | None = "not connected yet"  # None while connected
        self.end = Position(0)  # number of the registry's last commit, as far as it is known
        self.entry_bytes = 0.0  # average size of an entry
        self._log = commit_log
        self._decoder = decoder
        self._clock = clock
        self._poll_s = poll_s

    @property
    def decode_error(self) -> str | None:
        return self._decoder.decode_error

    async def follow(self, mark: Mark) -> AsyncGenerator[tuple[Sequence[Transaction] | Progress, list[Mark]], None]:
        """Yields what was committed after the mark, with the marks of these commits. Raises LogBroken."""
        look, pause_s, failures = True, _FIRST_PAUSE_S, 0
        self.end = Position(mark.sequence)
        while True:
            try:
                page = await self._log.read(mark, look=look)
                known = (mark, page.end, page.entries[-1].mark if page.entries else None)
                self.end = Position(max(self.end, *(each.sequence for each in known if each is not None)))
                transactions: list[Transaction] = []
                marks: list[Mark] = []
                size = 0
                for entry in page.entries:
                    found = await self._decoder.decode(entry, self._log.chunks(entry))
                    self._measure(entry.size_bytes or found.size_bytes)
                    marks.append(entry.mark)
                    size += found.size_bytes
                    if found.tables:
                        transactions.append(found)
                    if size > _BATCH_BYTES:
                        break
            except LogBroken:
                raise
            except RegistryError as error:
                failures += 1
                self._disconnected(error)
                await self._clock.sleep(_RETRY.wait_s(failures, self._clock))
                continue
            self._connected()
            failures = 0
            if not marks:
                await self._clock.sleep(pause_s)
                look, pause_s = True, min(pause_s * _SLOWER, self._poll_s)
                continue
            mark, pause_s = marks[-1], min(_FIRST_PAUSE_S, self._poll_s)
            look = mark == page.entries[-1].mark and not page.has_more
            if transactions:
                yield transactions, marks
            last = Position(mark.sequence)
            if not transactions or transactions[-1].position < last:
                yield Progress(last), marks

    def _measure(self, size: int) -> None:
        self.entry_bytes = size if not self.entry_bytes else self.entry_bytes + (size - self.entry_bytes) * _SMOOTHING

    def _disconnected(self, error: RegistryError) -> None:
        if self.failure is None:
            log.warning("commit log can't be read, retrying", error=str(error))
        self.failure = str(error)

    def _connected(self) -> None:
        if self.failure is not None:
            log.info("commit log is being read")
        self.failure = None
