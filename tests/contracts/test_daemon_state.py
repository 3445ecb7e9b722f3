"""The daemon's own state: leadership, ledger, source identity."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.errors import Fenced, Invalid
from registry.json_text import JsonText
from registry.models import DaemonLease, DatabaseTime, LedgerEntry, RunningDaemon
from tests.contracts.bad_input import BAD_COUNTS, BAD_NAMES, Refused
from tests.contracts.contents import unchanged
from tests.doubles.clock import ManualClock

TTL = 1_000

TABLES = JsonText('["table_files"]')

DAEMON = RunningDaemon("host:7:ab", "astha", "host", 7, "standby", "sqlite", JsonText('["compactor"]'), "0.1", 1, 2)


def _entry(component: str, position: int | None = 1) -> LedgerEntry:
    return LedgerEntry(component, position, JsonText('{"last":1}'), TABLES, "live", False, None, 1, "astha")


async def _lead(store: MetadataStore, holder: str = "one") -> DaemonLease:
    lease = await store.take_daemon_lease("astha", holder, TTL)
    assert lease is not None
    return lease


async def test_one_daemon_leads(store: MetadataStore, clock: ManualClock) -> None:
    lease = await _lead(store)
    assert lease == DaemonLease("astha", "one", 1, clock.now_ms(), clock.now_ms() + TTL)
    assert await store.get_daemon_lease("astha") == lease
    assert await store.get_daemon_lease("other") is None
    clock.advance(TTL - 1)
    async with unchanged(store):
        assert await store.take_daemon_lease("astha", "two", TTL) is None
    clock.advance(1)
    assert (await _lead(store, "two")).epoch == 2


async def test_a_lease_that_was_seen_unchanged_is_taken_over_whatever_the_clock_says(
    store: MetadataStore, clock: ManualClock
) -> None:
    seen = await _lead(store)
    clock.set(clock.now_ms() - 3_600_000)
    async with unchanged(store):
        assert await store.take_daemon_lease("astha", "two", TTL) is None
    renewed = await store.renew_daemon_lease(seen, TTL)
    assert await store.take_daemon_lease("astha", "two", TTL, dead=seen) is None, "it has been renewed since"
    taken = await store.take_daemon_lease("astha", "two", TTL, dead=renewed)
    assert taken == DaemonLease("astha", "two", 2, clock.now_ms(), clock.now_ms() + TTL)
    with pytest.raises(Fenced):
        await store.renew_daemon_lease(renewed, TTL)


async def test_the_databases_time(store: MetadataStore, clock: ManualClock, url: str) -> None:
    found = await store.time()
    if not url.startswith("sqlite"):
        assert found.now_ms is not None
        assert abs(found.now_ms - time.time() * 1000) < 600_000
        assert found.newest_ms is None
        return
    assert found == DatabaseTime(None, None), "nothing is recorded yet"
    await _lead(store)
    assert await store.time() == DatabaseTime(None, clock.now_ms() + TTL)
    clock.advance(5_000)
    await store.register_agent("a", "127.0.0.1:1")
    assert await store.time() == DatabaseTime(None, clock.now_ms())


async def test_one_of_many_concurrent_daemons_leads(store: MetadataStore, other: MetadataStore) -> None:
    taken = await asyncio.gather(*((store, other)[n % 2].take_daemon_lease("astha", f"d{n}", TTL) for n in range(8)))
    (lease,) = (one for one in taken if one is not None)
    assert await store.get_daemon_lease("astha") == lease


async def test_epochs_only_grow(store: MetadataStore, clock: ManualClock) -> None:
    first = await _lead(store)
    second = await _lead(store)  # the holder's own: it has restarted
    assert await store.release_daemon_lease(second)
    third = await _lead(store, "two")
    clock.advance(TTL)
    fourth = await _lead(store, "one")
    assert [lease.epoch for lease in (first, second, third, fourth)] == [1, 2, 3, 4]


async def test_a_renewal_keeps_the_epoch_and_a_paused_leader_is_fenced(
    store: MetadataStore, clock: ManualClock
) -> None:
    old = await _lead(store)
    clock.advance(TTL // 2)
    renewed = await store.renew_daemon_lease(old, TTL)
    assert renewed == msgspec.structs.replace(old, expires_at=clock.now_ms() + TTL)
    await store.write_ledger([_entry("compactor")], renewed)
    clock.advance(TTL)
    await _lead(store, "two")
    async with unchanged(store):
        with pytest.raises(Fenced, match="astha"):
            await store.renew_daemon_lease(renewed, TTL)
        with pytest.raises(Fenced, match="astha"):
            await store.write_ledger([_entry("compactor", 2), _entry("new")], renewed)
        assert await store.release_daemon_lease(renewed) is False


async def test_all_columns_of_the_ledger_are_stored(store: MetadataStore) -> None:
    lease = await _lead(store)
    entries = [
        LedgerEntry("a", None, None, TABLES, "broken", True, "it's down", 5, "astha"),
        LedgerEntry("b", 2**62, JsonText('{"running":[1],"xmax":2}'), TABLES, "live", False, None, 6, "astha"),
    ]
    await store.write_ledger(entries[::-1], lease)
    assert await store.read_ledger() == entries
    changed = msgspec.structs.replace(
        entries[0], position=7, refresh_owed=False, reason=None, refresh_visibility=JsonText("{}")
    )
    await store.write_ledger([changed], lease)
    assert await store.read_ledger() == [changed, entries[1]]
    await store.forget_component("other", "a")
    assert len(await store.read_ledger()) == 2
    await store.forget_component("astha", "a")
    await store.forget_component("astha", "a")
    assert await store.read_ledger() == [entries[1]]
    async with unchanged(store):
        await store.write_ledger([], lease)


async def test_groups_have_their_own_leases_epochs_and_ledgers(store: MetadataStore) -> None:
    first = await _lead(store)
    for _ in range(3):
        second = await store.take_daemon_lease("other", "two", TTL)
    assert second is not None
    assert (first.epoch, second.epoch) == (1, 3)
    ours, theirs = _entry("compactor", 7), msgspec.structs.replace(_entry("compactor", 9), group="other")
    await store.write_ledger([ours], first)
    await store.write_ledger([theirs], second)
    assert await store.read_ledger("astha") == [ours]
    assert await store.read_ledger("other") == [theirs]
    assert await store.read_ledger() == [ours, theirs]
    assert await store.read_ledger("third") == []
    async with unchanged(store):
        with pytest.raises(Invalid, match="must be the group of the lease, astha"):
            await store.write_ledger([_entry("a"), theirs], first)
    await store.forget_component("astha", "compactor")
    assert await store.read_ledger() == [theirs]


async def test_running_daemons(store: MetadataStore, clock: ManualClock) -> None:
    other = msgspec.structs.replace(DAEMON, holder="a:1:x", group="other", role="standby", seen_at=clock.now_ms())
    await store.record_daemon(other)
    await store.record_daemon(DAEMON)
    assert await store.list_daemons() == [DAEMON, other]
    later = msgspec.structs.replace(DAEMON, role="leader", components=JsonText("[]"), seen_at=clock.now_ms() - 5)
    await store.record_daemon(later)
    assert await store.list_daemons() == [later, other]
    assert await store.prune_daemons(5) == 0
    assert await store.prune_daemons(4) == 1
    assert await store.list_daemons() == [other]
    await store.forget_daemon("unknown")
    await store.forget_daemon(other.holder)
    assert await store.list_daemons() == []


async def test_source_identity(store: MetadataStore, clock: ManualClock) -> None:
    assert await store.get_source_identity("registry") is None
    await store.record_source_identity("registry", "system-1")
    clock.advance(5)
    await store.record_source_identity("registry", "system-2")
    found = await store.get_source_identity("registry")
    assert found is not None
    assert (found.identity, found.recorded_at) == ("system-2", clock.now_ms())


async def test_an_identity_is_recorded_once(store: MetadataStore, other: MetadataStore, clock: ManualClock) -> None:
    stores = [store, other] * 4
    found = await asyncio.gather(
        *(one.ensure_source_identity("lake", f"number {number}") for number, one in enumerate(stores))
    )
    clock.advance(5)
    assert len(set(found)) == 1
    assert await store.ensure_source_identity("lake", "later") == found[0] == await other.get_source_identity("lake")


async def test_bad_input_is_named_and_nothing_written(store: MetadataStore, refused: Refused) -> None:
    lease = await _lead(store)
    async with unchanged(store):
        for name in BAD_NAMES:
            await refused(store.take_daemon_lease(name, "one", TTL), "name", name)
            await refused(store.get_daemon_lease(name), "name", name)
            await refused(store.get_source_identity(name), "name", name)
            await refused(store.record_source_identity(name, "x"), "name", name)
            await refused(store.ensure_source_identity(name, "x"), "name", name)
            await refused(store.forget_component("astha", name), "component", name)
            await refused(store.forget_component(name, "a"), "group", name)
            await refused(store.record_daemon(msgspec.structs.replace(DAEMON, group=name)), "group", name)
            if name is not None:
                await refused(store.read_ledger(name), "group", name)
            await refused(store.write_ledger([_entry("a"), _entry(name)], lease), "component", name)
        for number in [*BAD_COUNTS, 0]:
            await refused(store.take_daemon_lease("astha", "one", number), "ttl_ms", number)
            await refused(store.renew_daemon_lease(lease, number), "ttl_ms", number)
        for number in BAD_COUNTS:
            await refused(store.record_daemon(msgspec.structs.replace(DAEMON, pid=number)), "pid", number)
            await refused(store.prune_daemons(number), "not_seen_for_ms", number)
            await refused(store.write_ledger([_entry("a"), _entry("b", number)], lease), "position", number)
        for text in ("", "nul\0", "\ud800"):
            await refused(store.take_daemon_lease("astha", text, TTL), "holder", text)
            await refused(store.record_daemon(msgspec.structs.replace(DAEMON, holder=text)), "holder", text)
            await refused(store.forget_daemon(text), "holder", text)
            await refused(store.record_source_identity("registry", text), "identity", text)
            if text:
                bad = msgspec.structs.replace(_entry("a"), reason=text)
                await refused(store.write_ledger([bad], lease), "reason", text)
        await refused(store.record_daemon(msgspec.structs.replace(DAEMON, role="boss")), "role", "boss")
        with pytest.raises(Invalid):
            await store.record_daemon(msgspec.structs.replace(DAEMON, components=JsonText("[")))
        with pytest.raises(Invalid, match="ttl_ms"):
            await store.take_daemon_lease("astha", "one", 2**63 - 1)
        with pytest.raises(Invalid):
            await store.write_ledger([msgspec.structs.replace(_entry("a"), refresh_visibility=JsonText("{"))], lease)
