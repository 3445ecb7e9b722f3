"""Decodes entries of the commit log: changed rows in, one whole transaction out."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping

import msgspec
import structlog

from astha.errors import ConfigError, DecodeError
from astha.events import Commit, Event, Operation, Transaction
from astha.sources.limits import TransactionLimits
from registry.models import PUBLISHED, Row
from registry.position import Position
from registry.stores.dynamodb.changes import is_null, raw_changes
from registry.stores.dynamodb.commit_log import LogEntry

log = structlog.get_logger(__name__)

_DECODERS: Mapping[str, msgspec.json.Decoder[Row]] = {kind.table: msgspec.json.Decoder(kind) for kind in PUBLISHED}


class EntryDecoder:
    """A transaction beyond its limits keeps no events, only the names of its tables. So does one table whose rows can't
    be decoded: its subscribers refresh.
    """

    def __init__(self, tables: frozenset[str], limits: TransactionLimits) -> None:
        unknown = sorted(tables - _DECODERS.keys())
        if unknown:
            raise ConfigError(f"tables are not published, so they can't be subscribed to: {', '.join(unknown)}")
        self.decode_error: str | None = None  # of the last row that could not be decoded
        self._tables = tables
        self._limits = limits

    async def decode(self, entry: LogEntry, chunks: AsyncIterator[bytes]) -> Transaction:
        """Returns a transaction without tables if it changed none of the subscribed ones."""
        commit = Commit(entry.mark.sequence, Position(entry.mark.sequence), entry.time_ms * 1000)
        found = Transaction(commit, [], frozenset())
        tables: set[str] = set()
        unlisted: set[str] = set()
        oversized = False
        async for chunk in chunks:
            for table, before, after in self._changes(entry, chunk, unlisted):
                if table not in self._tables:
                    continue
                tables.add(table)
                if oversized:
                    continue
                found.size_bytes += len(bytes(before)) + len(bytes(after))
                try:
                    found.events.append(_event(table, before, after, commit, len(found.events)))
                except DecodeError as error:
                    unlisted.add(table)
                    self._report(error, table)
                if found.size_bytes > self._limits.size_bytes or len(found.events) > self._limits.events:
                    oversized, found.events = True, []
        commit.count = len(found.events)
        found.tables = frozenset(tables | unlisted)
        found.unlisted = frozenset(tables if oversized else unlisted)
        return found

    def _changes(self, entry: LogEntry, chunk: bytes, unlisted: set[str]) -> list[tuple[str, msgspec.Raw, msgspec.Raw]]:
        try:
            return list(raw_changes(chunk))
        except (zlib.error, msgspec.MsgspecError, UnicodeError) as error:
            unlisted |= self._tables
            self._report(DecodeError(f"commit {entry.mark.sequence}: {error}"), "all")
            return []

    def _report(self, error: DecodeError, table: str) -> None:
        self.decode_error = str(error)
        log.warning("change can't be decoded: its subscribers refresh", table=table, error=str(error))


def _event(table: str, before: msgspec.Raw, after: msgspec.Raw, commit: Commit, index: int) -> Event[Row]:
    decoder = _DECODERS[table]
    try:
        old = None if is_null(before) else decoder.decode(before)
        new = None if is_null(after) else decoder.decode(after)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DecodeError(f"commit {commit.position}, row of {table}: {error}") from error
    if new is not None:
        return Event(Operation.INSERT if old is None else Operation.UPDATE, new, old, commit, index)
    if old is None:
        raise DecodeError(f"commit {commit.position}: a change of {table} without rows")
    return Event(Operation.DELETE, old, old, commit, index)
