"""The replication connection: bytes as they arrive, status updates as they fall due.

psycopg 3 has no replication API, but libpq's copy functions, which it exposes, are all that is needed (psycopg#71).
The socket is watched only while we wait for it: a watched socket that nobody reads keeps the loop spinning.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import psycopg
from psycopg import generators, pq, waiting
from psycopg.conninfo import make_conninfo

from astha.errors import SlotInUse, SourceLost, SourceReset
from astha.events import Transaction
from astha.sources.contract import Progress
from astha.sources.postgres.decode import POSTGRES_EPOCH_US, Decoder
from astha.sources.postgres.slot import require_primary, require_replication_role
from registry.clock import Clock
from registry.position import Position

_KEEPALIVE = struct.Struct(">QqB").unpack_from
_XLOG_START = struct.Struct(">Q").unpack_from
_STATUS = struct.Struct(">cQQQqB").pack

_AT_ONCE = 2_000
"""Messages decoded before the loop gets a turn: some milliseconds."""

_LAST_WORDS_S = 5.0
"""For the reason why the server ended the stream."""

APPLICATION = "astha"

_SESSION = "-c timezone=UTC -c datestyle=ISO -c extra_float_digits=3 -c client_min_messages=warning"

_UNPUBLISHED = "something was written while the publication did not exist, and so was not published"


class ReplicationStream:
    """One START_REPLICATION, from its start to its end. Not reusable."""

    def __init__(self, connection: psycopg.AsyncConnection[tuple[object, ...]], clock: Clock, confirmed: Position):
        self._connection = connection
        self._pgconn = connection.pgconn
        self._clock = clock
        self.received = confirmed
        self._confirmed = confirmed
        self._status_task: asyncio.Task[None] | None = None
        self._heard = clock.monotonic()
        self._ready: asyncio.Future[None] | None = None  # what the reader waits for
        self._watched: int | None = None  # the socket, while it is
        self._broken: SourceLost | SourceReset | None = None
        self._unpublished = False
        connection.add_notice_handler(self._warned)

    @classmethod
    async def open(cls, conninfo: str, clock: Clock) -> ReplicationStream:
        given = psycopg.conninfo.conninfo_to_dict(conninfo).get("options")
        options = f"{given} {_SESSION}" if given else _SESSION
        try:
            connection = await psycopg.AsyncConnection.connect(
                make_conninfo(
                    conninfo, replication="database", options=options, application_name=f"{APPLICATION} stream"
                ),
                autocommit=True,
            )
        except psycopg.OperationalError as error:
            await require_replication_role(conninfo)
            raise SourceLost(f"can't connect for replication: {error}") from error
        return cls(connection, clock, Position(0))

    async def identify(self) -> tuple[str, int]:
        """The primary's system identifier and timeline. SourceLost at a standby.

        In this order: a standby that is promoted in between would still have answered with its old timeline.
        """
        await require_primary(self._connection)
        row = await (await self._connection.execute("IDENTIFY_SYSTEM")).fetchone()
        assert row is not None  # noqa: S101  (the command always answers)
        return str(row[0]), int(str(row[1]))

    async def create_temporary_slot(self, slot: str) -> Position:
        """One that ends with this connection; answers where it starts."""
        query = (
            f"SELECT (lsn - '0/0'::pg_lsn)::bigint FROM pg_create_logical_replication_slot('{slot}', 'pgoutput', true)"
        )
        row = await (await self._connection.execute(query.encode())).fetchone()
        assert row is not None  # noqa: S101  (the function answers one row)
        return Position(int(str(row[0])))

    async def copy_slot(self, slot: str, copy: str) -> None:
        """A slot that ends with this connection, and starts where `slot` was last acknowledged; that one may be in
        use. SourceLost if the server refuses, with its reason.
        """
        query = f"SELECT pg_copy_logical_replication_slot('{slot}', '{copy}', true)"
        try:
            await self._connection.execute(query.encode())
        except psycopg.Error as error:
            raise SourceLost(
                f"slot {slot} can't be copied: {error.diag.message_primary or error}; reading again needs a free slot "
                "and a free sender: see max_replication_slots and max_wal_senders"
            ) from error

    async def start(
        self, slot: str, publication: str, start: Position, protocol: int, *, status_interval_s: float, silence_s: float
    ) -> None:
        """Begin at the later of `start` and what the slot has confirmed. A server that answers nothing at all for
        `silence_s` is given up: a connection can be dead without being closed.
        """
        place = f"{start >> 32:X}/{start & 0xFFFFFFFF:X}"
        options = f"proto_version '{protocol}', publication_names '\"{publication}\"', binary 'true'"
        try:
            await self._connection.execute(f'START_REPLICATION SLOT "{slot}" LOGICAL {place} ({options})'.encode())
        except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.UndefinedObject) as error:
            raise SourceReset(f"slot {slot} can't go on: {error.diag.message_primary}") from error
        except psycopg.errors.ObjectInUse as error:
            raise SlotInUse(f"slot {slot} is in use: {error.diag.message_primary}") from error
        except psycopg.Error as error:
            raise SourceLost(f"can't start replication from slot {slot}: {error}") from error
        self.received = self._confirmed = start
        self._heard = self._clock.monotonic()
        self._status_task = asyncio.create_task(self._report(status_interval_s, silence_s), name="replication status")

    def confirm(self, position: Position) -> None:
        """Sent with the next status update."""
        if position > self._confirmed:
            self._confirmed = position
            self.received = max(self.received, position)

    async def batches(self, decoder: Decoder) -> AsyncIterator[list[Transaction] | Progress]:
        """What is there, decoded; waits only when nothing is.

        A reader that falls behind finds more together, and a hundred small transactions cost little more than one. To
        let them gather on purpose makes it slower: the server waits as soon as the socket is full.
        """
        try:
            while True:
                if self._broken is not None:
                    raise self._broken
                done, progress, count = self._read(decoder)
                if not count and not done and progress is None:
                    await self._readable()
                    continue
                self._look_away()
                if count < 0:
                    raise await self._ended()
                if done:
                    self._heard = self._clock.monotonic()
                    self.received = max(self.received, done[-1].position)
                    yield done
                if progress is not None:
                    self.received = max(self.received, progress)
                    yield Progress(progress)
                if count:
                    await asyncio.sleep(0)
        finally:
            self._look_away()

    def _read(self, decoder: Decoder) -> tuple[list[Transaction], Position | None, int]:
        """Transactions, the last idle position, and libpq's word: 0 nothing left, above 0 maybe more, below 0 the end.

        libpq takes some kilobytes from the socket at a time: only when a look brings nothing, nothing is there.
        """
        get = self._pgconn.get_copy_data
        feed = decoder.feed
        done: list[Transaction] = []
        progress: Position | None = None
        looked = False
        for _ in range(_AT_ONCE):
            try:
                count, data = get(1)
            except psycopg.Error as error:
                raise SourceLost(f"the replication connection broke: {error}") from error
            if self._unpublished:
                raise SourceReset(_UNPUBLISHED)
            if count > 0:
                looked = False
                if data[0] == 0x77:  # 'w': data
                    transaction = feed(bytes(data))
                    if transaction is not None:
                        done.append(transaction)
                else:  # 'k': keepalive
                    progress = self._keepalive(data, decoder.in_transaction) or progress
            elif count < 0 or looked:
                return done, progress, count
            else:
                self._consume()
                looked = True
        return done, progress, 1

    @property
    def silent_s(self) -> float:
        """Since anything was heard of the server. It is asked to answer every status update."""
        return self._clock.monotonic() - self._heard

    def send_status(self, *, reply: bool = False) -> None:
        """With `reply` the server answers at once, which shows that it hears us."""
        now = self._clock.now_ms() * 1000 - POSTGRES_EPOCH_US
        status = _STATUS(b"r", self.received, self._confirmed, self._confirmed, now, reply)
        try:
            self._pgconn.put_copy_data(status)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise SourceLost(f"the replication connection broke: {error}") from error

    async def close(self) -> None:
        if self._status_task is not None:
            self._status_task.cancel()
            await asyncio.gather(self._status_task, return_exceptions=True)
        await self._connection.close()

    def _keepalive(self, data: memoryview, in_transaction: bool) -> Position | None:
        end, _clock, reply = _KEEPALIVE(data, 1)
        if reply:
            self.send_status()
        return None if in_transaction else Position(end)

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            raise SourceLost(f"the replication connection broke: {error}") from error

    async def _ended(self) -> SourceLost | SourceReset:
        """The server ended the stream: find out why."""
        try:
            results = await waiting.wait_async(
                generators.fetch_many(self._pgconn), self._pgconn.socket, timeout=_LAST_WORDS_S
            )
        except psycopg.Error as error:
            return SourceLost(f"replication ended: {error}")
        errors = [result for result in results if result.status == pq.ExecStatus.FATAL_ERROR]
        if any(error.error_field(pq.DiagnosticField.SQLSTATE) == b"42704" for error in errors):  # undefined_object
            return SourceReset(_UNPUBLISHED)
        message = "; ".join(error.get_error_message() for error in errors).strip()
        return SourceLost(f"replication ended: {message or 'the server closed the connection'}")

    def _warned(self, notice: psycopg.errors.Diagnostic) -> None:
        """From PostgreSQL 18 on a missing publication is only warned of, once, before what follows in the stream."""
        if notice.sqlstate == "55000" and notice.source_function == "LoadPublications":
            self._unpublished = True

    async def _report(self, interval_s: float, silence_s: float) -> None:
        """Status updates have a timer of their own: a slow reader must not look like a dead one."""
        while True:
            await asyncio.sleep(min(interval_s, silence_s / 4))
            silent_s = self.silent_s
            # While nobody waits for the socket it is we who don't listen: what came meanwhile is still to be read.
            if silent_s > silence_s and self._ready is not None and not self._ready.done():
                return self.fail(SourceLost(f"the server has been silent for {silent_s:.0f} s"))
            try:
                self.send_status(reply=True)
            except SourceLost as error:
                return self.fail(error)

    def fail(self, error: SourceLost | SourceReset) -> None:
        """End `batches` with this error: the caller knows that the stream can't be used any more."""
        self._broken = error
        self._wake()

    def _wake(self) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    async def _readable(self) -> None:
        """A transaction comes in several pieces: the socket is watched until one is complete."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        if self._watched is None:
            self._watched = self._pgconn.socket
            loop.add_reader(self._watched, self._wake)
        try:
            if self._broken is None:
                await self._ready
        finally:
            self._ready = None
        self._heard = self._clock.monotonic()

    def _look_away(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None
