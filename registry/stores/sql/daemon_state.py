"""The daemons' own state: leases, the ledger of components, running daemons, the identity of the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
from sqlalchemy import ColumnElement, and_, delete, false, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from registry import validation
from registry.errors import Conflict, Fenced, Invalid
from registry.models import DaemonLease, DaemonRole, LedgerEntry, RunningDaemon, SourceIdentity
from registry.schema import daemon_lease, daemons, ledger, source_identity
from registry.stores.sql.base import SqlBase, select_rows

_LEDGER_VALUES = [name for name in LedgerEntry.__struct_fields__ if name not in LedgerEntry.key]


class SqlDaemonState(SqlBase):
    async def take_daemon_lease(
        self, name: str, holder: str, ttl_ms: int, *, dead: DaemonLease | None = None
    ) -> DaemonLease | None:
        validation.name("name", name)
        validation.non_empty("holder", holder)
        validation.ttl("ttl_ms", ttl_ms)
        now = self._clock.now_ms()
        statement = self._insert(daemon_lease).values(
            name=name, holder=holder, epoch=1, acquired_at=now, expires_at=now + ttl_ms
        )
        statement = statement.on_conflict_do_update(
            index_elements=[daemon_lease.c.name],
            set_={
                "holder": statement.excluded.holder,
                "epoch": daemon_lease.c.epoch + 1,
                "acquired_at": statement.excluded.acquired_at,
                "expires_at": statement.excluded.expires_at,
            },
            where=or_(daemon_lease.c.expires_at <= now, daemon_lease.c.holder == holder, _unchanged(dead)),
        )
        return await self._write_one(DaemonLease, statement.returning(daemon_lease))

    async def renew_daemon_lease(self, lease: DaemonLease, ttl_ms: int) -> DaemonLease:
        validation.ttl("ttl_ms", ttl_ms)
        statement = update(daemon_lease).where(*_held(lease)).values(expires_at=self._clock.now_ms() + ttl_ms)
        renewed = await self._write_one(DaemonLease, statement.returning(daemon_lease))
        if renewed is None:
            raise Fenced(f"another daemon holds the lease {lease.name!r}")
        return renewed

    async def release_daemon_lease(self, lease: DaemonLease) -> bool:
        statement = update(daemon_lease).where(*_held(lease)).values(expires_at=self._clock.now_ms())
        return bool(await self._write(statement))

    async def get_daemon_lease(self, name: str) -> DaemonLease | None:
        validation.name("name", name)
        return await self._row(DaemonLease, select_rows(DaemonLease).where(daemon_lease.c.name == name))

    async def read_ledger(self, group: str | None = None) -> list[LedgerEntry]:
        query = select_rows(LedgerEntry).order_by(ledger.c.group, ledger.c.component)
        if group is not None:
            validation.name("group", group)
            query = query.where(ledger.c.group == group)
        return await self._rows(LedgerEntry, query)

    async def write_ledger(self, entries: Sequence[LedgerEntry], lease: DaemonLease) -> None:
        for entry in entries:
            check_entry(entry, lease)
        if entries and not await self._write_entries(entries, lease):
            raise Fenced(f"another daemon holds the lease {lease.name!r}")

    async def _write_entries(self, entries: Sequence[LedgerEntry], lease: DaemonLease) -> bool:
        """Returns False, and writes nothing, if the lease is not held."""
        async with self._transaction() as connection:
            held = select(daemon_lease.c.epoch).where(*_held(lease)).with_for_update(read=True)
            if (await connection.execute(held)).first() is None:
                return False
            statement = self._insert(ledger)
            await connection.execute(
                statement.on_conflict_do_update(
                    index_elements=[ledger.c.group, ledger.c.component],
                    set_={name: statement.excluded[name] for name in _LEDGER_VALUES},
                ),
                [msgspec.structs.asdict(entry) for entry in entries],
            )
        return True

    async def forget_component(self, group: str, component: str) -> None:
        validation.name("group", group)
        validation.name("component", component)
        await self._write(delete(ledger).where(ledger.c.group == group, ledger.c.component == component))

    async def record_daemon(self, daemon: RunningDaemon) -> None:
        check_daemon(daemon)
        values = msgspec.structs.asdict(daemon)
        statement = self._insert(daemons).values(values)
        await self._write(
            statement.on_conflict_do_update(
                index_elements=[daemons.c.holder],
                set_={name: statement.excluded[name] for name in values if name != "holder"},
            )
        )

    async def list_daemons(self) -> list[RunningDaemon]:
        query = select_rows(RunningDaemon).order_by(daemons.c.group, daemons.c.holder)
        return await self._rows(RunningDaemon, query)

    async def forget_daemon(self, holder: str) -> None:
        validation.non_empty("holder", holder)
        await self._write(delete(daemons).where(daemons.c.holder == holder))

    async def prune_daemons(self, not_seen_for_ms: int) -> int:
        validation.integer("not_seen_for_ms", not_seen_for_ms)
        return await self._write(delete(daemons).where(daemons.c.seen_at < self._clock.now_ms() - not_seen_for_ms))

    async def get_source_identity(self, name: str) -> SourceIdentity | None:
        validation.name("name", name)
        return await self._row(SourceIdentity, select_rows(SourceIdentity).where(source_identity.c.name == name))

    async def ensure_source_identity(self, name: str, identity: str) -> SourceIdentity:
        statement = self._identity_row(name, identity)
        await self._write(statement.on_conflict_do_nothing(index_elements=[source_identity.c.name]))
        found = await self.get_source_identity(name)
        if found is None:
            raise Conflict(f"source identity {name!r} was removed while it was being recorded: try again")
        return found

    async def record_source_identity(self, name: str, identity: str) -> None:
        statement = self._identity_row(name, identity)
        await self._write(
            statement.on_conflict_do_update(
                index_elements=[source_identity.c.name],
                set_={key: statement.excluded[key] for key in ("identity", "recorded_at")},
            )
        )

    def _identity_row(self, name: str, identity: str) -> postgresql.Insert | sqlite.Insert:
        check_identity(name, identity)
        values = {"name": name, "identity": identity, "recorded_at": self._clock.now_ms()}
        return self._insert(source_identity).values(values)


def check_identity(name: str, identity: str) -> None:
    validation.name("name", name)
    validation.non_empty("identity", identity)


def check_entry(entry: LedgerEntry, lease: DaemonLease) -> None:
    validation.name("component", entry.component)
    if entry.group != lease.name:
        raise Invalid("group", entry.group, f"must be the group of the lease, {lease.name}")
    validation.optional("position", entry.position, validation.integer)
    validation.optional("refresh_visibility", entry.refresh_visibility, validation.non_empty)
    validation.non_empty("state", entry.state)
    validation.boolean("refresh_owed", entry.refresh_owed)
    validation.optional("reason", entry.reason, validation.text)
    validation.integer("updated_at", entry.updated_at)


def check_daemon(daemon: RunningDaemon) -> None:
    validation.name("group", daemon.group)
    for field in ("holder", "host", "source", "version"):
        validation.non_empty(field, getattr(daemon, field))
    validation.one_of("role", daemon.role, get_args(DaemonRole))
    for field in ("pid", "started_at", "seen_at"):
        validation.integer(field, getattr(daemon, field))


def _unchanged(lease: DaemonLease | None) -> ColumnElement[bool]:
    """Whether the lease has not been renewed: every renewal changes ``expires_at``."""
    return false() if lease is None else and_(*_held(lease), daemon_lease.c.expires_at == lease.expires_at)


def _held(lease: DaemonLease) -> list[ColumnElement[bool]]:
    columns = daemon_lease.c
    return [columns.name == lease.name, columns.holder == lease.holder, columns.epoch == lease.epoch]
