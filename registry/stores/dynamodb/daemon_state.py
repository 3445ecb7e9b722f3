"""The daemons' own state. Ledger, leases and presence are a domain of their own: they never wait for other commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from registry import validation
from registry.errors import Fenced
from registry.models import DaemonLease, LakeLocation, LedgerEntry, LocationName, RunningDaemon, SourceIdentity
from registry.stores.dynamodb.base import DynamoBase
from registry.stores.dynamodb.reader import Range
from registry.stores.dynamodb.state import DAEMON
from registry.stores.dynamodb.transaction import Transaction
from registry.stores.sql.daemon_state import check_daemon, check_entry, check_identity
from registry.stores.sql.lake_locations import check_locations


class DynamoDaemonState(DynamoBase):
    async def take_daemon_lease(
        self, name: str, holder: str, ttl_ms: int, *, dead: DaemonLease | None = None
    ) -> DaemonLease | None:
        validation.name("name", name)
        validation.non_empty("holder", holder)
        validation.ttl("ttl_ms", ttl_ms)

        async def change(tx: Transaction) -> DaemonLease | None:
            old = await tx.get(DaemonLease, name)
            if old is None:
                return tx.insert(DaemonLease(name, holder, 1, tx.now, tx.now + ttl_ms))
            # Every renewal changes `expires_at`, so an equal row has not been renewed.
            unchanged = dead is not None and _held(old, dead) and old.expires_at == dead.expires_at
            if old.expires_at > tx.now and old.holder != holder and not unchanged:
                return None
            return tx.update(old, DaemonLease(name, holder, old.epoch + 1, tx.now, tx.now + ttl_ms))

        return await self._transact(change, DAEMON)

    async def renew_daemon_lease(self, lease: DaemonLease, ttl_ms: int) -> DaemonLease:
        validation.ttl("ttl_ms", ttl_ms)

        async def change(tx: Transaction) -> DaemonLease:
            return tx.replace(await self._require_lease(tx, lease), expires_at=tx.now + ttl_ms)

        return await self._transact(change, DAEMON)

    async def release_daemon_lease(self, lease: DaemonLease) -> bool:
        async def change(tx: Transaction) -> bool:
            current = await tx.get(DaemonLease, lease.name)
            if current is None or not _held(current, lease):
                return False
            tx.replace(current, expires_at=tx.now)
            return True

        return await self._transact(change, DAEMON)

    async def _require_lease(self, tx: Transaction, lease: DaemonLease) -> DaemonLease:
        current = await tx.get(DaemonLease, lease.name)
        if current is None or not _held(current, lease):
            raise Fenced(f"another daemon holds the lease {lease.name!r}")
        return current

    async def get_daemon_lease(self, name: str) -> DaemonLease | None:
        validation.name("name", name)
        return await self._get(DaemonLease, name, domain=DAEMON)

    async def read_ledger(self, group: str | None = None) -> list[LedgerEntry]:
        if group is not None:
            validation.name("group", group)
        within = Range() if group is None else Range(prefix=(group,))
        return await self._read(lambda reader: reader.rows(LedgerEntry, within=within), DAEMON)

    async def write_ledger(self, entries: Sequence[LedgerEntry], lease: DaemonLease) -> None:
        for entry in entries:
            check_entry(entry, lease)

        async def change(tx: Transaction) -> None:
            await self._require_lease(tx, lease)
            found = await tx.get_many(LedgerEntry, [(entry.group, entry.component) for entry in entries])
            for entry in entries:
                old = found.get((entry.group, entry.component))
                if old is None:
                    tx.insert(entry)
                else:
                    tx.update(old, entry)

        if entries:
            await self._transact(change, DAEMON)

    async def forget_component(self, group: str, component: str) -> None:
        validation.name("group", group)
        validation.name("component", component)
        await self._transact(lambda tx: _delete(tx, LedgerEntry, group, component), DAEMON)

    async def record_daemon(self, daemon: RunningDaemon) -> None:
        check_daemon(daemon)

        async def change(tx: Transaction) -> None:
            old = await tx.get(RunningDaemon, daemon.holder)
            if old is None:
                tx.insert(daemon)
            else:
                tx.update(old, daemon)

        await self._transact(change, DAEMON)

    async def list_daemons(self) -> list[RunningDaemon]:
        rows = await self._read(lambda reader: reader.rows(RunningDaemon), DAEMON)
        return sorted(rows, key=lambda row: (row.group, row.holder))

    async def forget_daemon(self, holder: str) -> None:
        validation.non_empty("holder", holder)
        await self._transact(lambda tx: _delete(tx, RunningDaemon, holder), DAEMON)

    async def prune_daemons(self, not_seen_for_ms: int) -> int:
        validation.integer("not_seen_for_ms", not_seen_for_ms)

        async def change(tx: Transaction) -> int:
            since = tx.now - not_seen_for_ms
            old = await tx.rows(RunningDaemon, where=lambda row: row.seen_at < since)
            for row in old:
                tx.delete(row)
            return len(old)

        return await self._transact(change, DAEMON)

    async def get_source_identity(self, name: str) -> SourceIdentity | None:
        validation.name("name", name)
        return await self._get(SourceIdentity, name)

    async def ensure_source_identity(self, name: str, identity: str) -> SourceIdentity:
        return await self._record_identity(name, identity, replace=False)

    async def record_source_identity(self, name: str, identity: str) -> None:
        await self._record_identity(name, identity, replace=True)

    async def _record_identity(self, name: str, identity: str, *, replace: bool) -> SourceIdentity:
        check_identity(name, identity)

        async def change(tx: Transaction) -> SourceIdentity:
            old = await tx.get(SourceIdentity, name)
            if old is None:
                return tx.insert(SourceIdentity(name, identity, tx.now))
            return tx.replace(old, identity=identity, recorded_at=tx.now) if replace else old

        return await self._transact(change)

    async def get_lake_locations(self) -> dict[str, str]:
        rows = await self._read(lambda reader: reader.rows(LakeLocation))
        return {row.name: row.location for row in rows}

    async def ensure_lake_locations(self, locations: Mapping[LocationName, str]) -> dict[str, str]:
        await self._record_locations(locations, replace=False)
        return await self.get_lake_locations()

    async def record_lake_locations(self, locations: Mapping[LocationName, str]) -> None:
        await self._record_locations(locations, replace=True)

    async def _record_locations(self, locations: Mapping[LocationName, str], *, replace: bool) -> None:
        check_locations(locations)

        async def change(tx: Transaction) -> None:
            found = await tx.get_many(LakeLocation, [(name,) for name in locations])
            for name, location in locations.items():
                old, row = found.get((name,)), LakeLocation(name, location, tx.now)
                if old is None:
                    tx.insert(row)
                elif replace:
                    tx.update(old, row)

        await self._transact(change)


async def _delete(tx: Transaction, kind: type[LedgerEntry | RunningDaemon], *key: str) -> None:
    row = await tx.get(kind, *key)
    if row is not None:
        tx.delete(row)


def _held(current: DaemonLease, lease: DaemonLease) -> bool:
    return (current.holder, current.epoch) == (lease.holder, lease.epoch)
