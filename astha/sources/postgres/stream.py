"""The replication connection: decodes messages as they arrive, sends status updates on a timer.

The socket is watched only while the reader waits for it: a readable socket that is watched but not read keeps the event
loop spinning.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import psycopg
from psycopg.conninfo import make_conninfo

from astha.errors import SlotInUse, SourceLost, SourceReset
from astha.events import Transaction
from astha.sources.contract import Progress
from astha.sources.postgres.copy_both import CopyBoth, sqlstate
from astha.sources.postgres.decode import POSTGRES_EPOCH_US, Decoder
from astha.sources.postgres.slot import require_primary, require_replication_role
from registry.clock import Clock
from registry.position import Position

_KEEPALIVE = struct.Struct(">QqB").unpack_from
_STATUS = struct.Struct(">cQQQqB").pack

_MESSAGES_PER_TURN = 2_000
"""Messages decoded before the reader yields to the event loop: some milliseconds."""

_END_REASON_TIMEOUT_S = 5.0
"""To learn why the server ended the stream."""

APPLICATION = "astha"

_SESSION = "-c timezone=UTC -c datestyle=ISO -c extra_float_digits=3 -c client_min_messages=warning"

_UNPUBLISHED = "rows were written while the publication did not exist, so they were not published"


class ReplicationStream:
    """One START_REPLICATION, from its start to its end. Not reusable."""

    def __init__(self, connection: psycopg.AsyncConnection[tuple[object, ...]], clock: Clock, confirmed: Position):
        self._connection = connection
        self._copy = CopyBoth(connection)
        self._clock = clock
        self.received = confirmed
        self._confirmed = confirmed
        self._status_task: asyncio.Task[None] | None = None
        self._heard = clock.monotonic()
        self._ready: asyncio.Future[None] | None = None  # the reader waits for it
        self._watched: int | None = None  # the socket, while it is watched
        self._broken: SourceLost | SourceReset | None = None
        self._unpublished = False
        connection.add_notice_handler(self._notice_received)

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
        """Returns the primary's system identifier and timeline. Raises SourceLost at a standby.

        The standby check comes first: a standby promoted between the two would have reported its old timeline.
        """
        await require_primary(self._connection)
        row = await (await self._connection.execute("IDENTIFY_SYSTEM")).fetchone()
        assert row is not None  # noqa: S101  (the command always returns a row)
        return str(row[0]), int(str(row[1]))

    async def create_temporary_slot(self, slot: str) -> Position:
        """Creates a slot that ends with this connection, and returns its start."""
        query = (
            f"SELECT (lsn - '0/0'::pg_lsn)::bigint FROM pg_create_logical_replication_slot('{slot}', 'pgoutput', true)"
        )
        row = await (await self._connection.execute(query.encode())).fetchone()
        assert row is not None  # noqa: S101  (the function returns one row)
        return Position(int(str(row[0])))

    async def copy_slot(self, slot: str, copy: str) -> None:
        """Creates a slot that ends with this connection and starts where `slot` was last acknowledged, even while that
        is in use. Raises SourceLost with the server's reason if it refuses.
        """
        query = f"SELECT pg_copy_logical_replication_slot('{slot}', '{copy}', true)"
        try:
            await self._connection.execute(query.encode())
        except psycopg.Error as error:
            raise SourceLost(
                f"slot {slot} can't be copied: {error.diag.message_primary or error}; a replay needs a free slot "
                "and a free sender: see max_replication_slots and max_wal_senders"
            ) from error

    async def start(
        self, slot: str, publication: str, start: Position, protocol: int, *, status_interval_s: float, silence_s: float
    ) -> None:
        """Begins at the later of `start` and the slot's confirmed position. A server that sends nothing for `silence_s`
        ends the stream with SourceLost: a dead connection is not always closed.
        """
        lsn = f"{start >> 32:X}/{start & 0xFFFFFFFF:X}"
        options = f"proto_version '{protocol}', publication_names '\"{publication}\"', binary 'true'"
        try:
            await self._connection.execute(f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn} ({options})'.encode())
        except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.UndefinedObject) as error:
            raise SourceReset(f"slot {slot} can't be resumed: {error.diag.message_primary}") from error
        except psycopg.errors.ObjectInUse as error:
            raise SlotInUse(f"slot {slot} is in use: {error.diag.message_primary}") from error
        except psycopg.Error as error:
            raise SourceLost(f"can't start replication from slot {slot}: {error}") from error
        self.received = self._confirmed = start
        self._heard = self._clock.monotonic()
        self._status_task = asyncio.create_task(self._report(status_interval_s, silence_s), name="replication status")

    def confirm(self, position: Position) -> None:
        """The next status update sends it to the server."""
        if position > self._confirmed:
            self._confirmed = position
            self.received = max(self.received, position)

    async def batches(self, decoder: Decoder) -> AsyncIterator[list[Transaction] | Progress]:
        """Yields the transactions that have arrived, and waits only if there are none.

        A reader that falls behind gets larger batches, and a hundred small transactions cost little more than one.
        Delaying reads to collect larger batches is slower: the server waits as soon as the socket is full.
        """
        try:
            while True:
                if self._broken is not None:
                    raise self._broken
                done, progress, count = self._read(decoder)
                if not count and not done and progress is None:
                    await self._readable()
                    continue
                self._unwatch()
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
            self._unwatch()

    def _read(self, decoder: Decoder) -> tuple[list[Transaction], Position | None, int]:
        """Returns transactions, the last idle position, and a number: 0 if nothing is left, above 0 if there may be
        more, below 0 at the end of the stream.

        libpq reads some kilobytes from the socket at a time: it is empty only if reading it brings no message.
        """
        get = self._copy.get_copy_data
        feed = decoder.feed
        done: list[Transaction] = []
        progress: Position | None = None
        consumed = False
        for _ in range(_MESSAGES_PER_TURN):
            try:
                count, data = get(1)
            except psycopg.Error as error:
                raise SourceLost(f"the replication connection broke: {error}") from error
            if self._unpublished:
                raise SourceReset(_UNPUBLISHED)
            if count > 0:
                consumed = False
                if data[0] == 0x77:  # 'w': data
                    transaction = feed(bytes(data))
                    if transaction is not None:
                        done.append(transaction)
                else:  # 'k': keepalive
                    progress = self._keepalive(data, decoder.in_transaction) or progress
            elif count < 0 or consumed:
                return done, progress, count
            else:
                self._consume()
                consumed = True
        return done, progress, 1

    @property
    def silent_s(self) -> float:
        """Seconds since the server sent anything. It has to reply to every status update."""
        return self._clock.monotonic() - self._heard

    def send_status(self, *, reply: bool = False) -> None:
        """With `reply` the server replies at once, which proves that the connection works."""
        now = self._clock.now_ms() * 1000 - POSTGRES_EPOCH_US
        status = _STATUS(b"r", self.received, self._confirmed, self._confirmed, now, reply)
        try:
            self._copy.send(status)
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
            self._copy.consume_input()
        except psycopg.Error as error:
            raise SourceLost(f"the replication connection broke: {error}") from error

    async def _ended(self) -> SourceLost | SourceReset:
        """Returns why the server ended the stream."""
        try:
            errors = await self._copy.errors(_END_REASON_TIMEOUT_S)
        except psycopg.Error as error:
            return SourceLost(f"replication ended: {error}")
        if any(sqlstate(error) == b"42704" for error in errors):  # undefined_object
            return SourceReset(_UNPUBLISHED)
        message = "; ".join(error.get_error_message() for error in errors).strip()
        return SourceLost(f"replication ended: {message or 'the server closed the connection'}")

    def _notice_received(self, notice: psycopg.errors.Diagnostic) -> None:
        """Since PostgreSQL 18 a missing publication is only a warning, sent once before the changes that follow."""
        if notice.sqlstate == "55000" and notice.source_function == "LoadPublications":
            self._unpublished = True

    async def _report(self, interval_s: float, silence_s: float) -> None:
        """Sends status updates on a timer of its own: the server must not take a slow reader for a dead one."""
        while True:
            await asyncio.sleep(min(interval_s, silence_s / 4))
            silent_s = self.silent_s
            # Silence counts only while the reader waits for the socket: otherwise unread data may be in it.
            if silent_s > silence_s and self._ready is not None and not self._ready.done():
                return self.fail(SourceLost(f"the server has been silent for {silent_s:.0f} s"))
            try:
                self.send_status(reply=True)
            except SourceLost as error:
                return self.fail(error)

    def fail(self, error: SourceLost | SourceReset) -> None:
        """Ends `batches` with this error. For a caller that knows that the stream is unusable."""
        self._broken = error
        self._wake()

    def _wake(self) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    async def _readable(self) -> None:
        """Waits for the socket. It stays watched until a transaction, which may arrive in parts, is complete."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        if self._watched is None:
            self._watched = self._copy.socket
            loop.add_reader(self._watched, self._wake)
        try:
            if self._broken is None:
                await self._ready
        finally:
            self._ready = None
        self._heard = self._clock.monotonic()

    def _unwatch(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None
