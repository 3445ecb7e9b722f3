from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from components.compactor.spark.worker_lease import LeaseServer
from components.lib.spark.errors import SessionProblem
from tests.doubles.spark import ScriptedWorker
from tests.waiting import eventually


@pytest.fixture
async def leases() -> AsyncIterator[tuple[LeaseServer, tuple[str, int]]]:
    leases = LeaseServer(take_over_s=0.2)
    port = await leases.open("127.0.0.1", 0)
    yield leases, ("127.0.0.1", port)
    await leases.close()


async def test_an_unknown_token_is_refused(leases: tuple[LeaseServer, tuple[str, int]]) -> None:
    worker = await asyncio.to_thread(ScriptedWorker, leases[1], "a token of yesterday")
    assert await asyncio.to_thread(worker.receive) == "no the task is no longer wanted"
    worker.die()


async def test_an_attempt_is_refused_while_an_earlier_one_does_not_end(
    leases: tuple[LeaseServer, tuple[str, int]],
) -> None:
    lease = leases[0].issue(local=True)
    first = await asyncio.to_thread(ScriptedWorker, leases[1], lease.token)
    assert await asyncio.to_thread(first.receive) == "go"
    second = await asyncio.to_thread(ScriptedWorker, leases[1], lease.token)
    assert "may still be writing" in await asyncio.to_thread(second.receive)
    assert not await lease.revoke(0.01)
    first.say_bye()
    second.die()
    await eventually(lambda: lease.holder is None, "the end of the first")
    assert not await lease.revoke(0.01)  # doubt stays


async def test_no_attempt_begins_after_the_lease_was_revoked(leases: tuple[LeaseServer, tuple[str, int]]) -> None:
    lease = leases[0].issue(local=True)
    assert await lease.revoke(0)
    worker = await asyncio.to_thread(ScriptedWorker, leases[1], lease.token)
    assert (await asyncio.to_thread(worker.receive)).startswith("no ")
    worker.die()
    assert lease.attempts == 0


async def test_after_two_deaths_on_two_executors_no_attempt_begins(
    leases: tuple[LeaseServer, tuple[str, int]],
) -> None:
    lease = leases[0].issue(local=True)
    for number in (1, 2):
        worker = await asyncio.to_thread(ScriptedWorker, leases[1], lease.token, parent=number)
        assert await asyncio.to_thread(worker.receive) == "go"
        worker.die()
        await eventually(lambda: lease.holder is None, "its death")
    third = await asyncio.to_thread(ScriptedWorker, leases[1], lease.token, parent=3)
    assert "died at this task" in await asyncio.to_thread(third.receive)
    third.die()


async def test_workers_are_disconnected_when_the_driver_closes(leases: tuple[LeaseServer, tuple[str, int]]) -> None:
    lease = leases[0].issue(local=True)
    worker = await asyncio.to_thread(ScriptedWorker, leases[1], lease.token)
    assert await asyncio.to_thread(worker.receive) == "go"
    await leases[0].close()
    assert await asyncio.to_thread(worker.receive) == ""
    worker.die()
    assert lease.may_still_write


async def test_a_port_that_is_taken(leases: tuple[LeaseServer, tuple[str, int]]) -> None:
    with pytest.raises(SessionProblem, match="set host to an address of this machine"):
        await LeaseServer(1).open(*leases[1])
