from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from components.compactor.spark.worker_lease import Leash, addresses
from components.lib.spark.errors import SessionProblem
from components.lib.spark.settings import SparkSettings
from tests.doubles.spark import Puppet
from tests.waiting import eventually


@pytest.fixture
async def leash() -> AsyncIterator[tuple[Leash, tuple[str, int]]]:
    leash = Leash(take_over_s=0.2)
    port = await leash.open("127.0.0.1", 0)
    yield leash, ("127.0.0.1", port)
    await leash.close()


async def test_strangers_are_sent_away(leash: tuple[Leash, tuple[str, int]]) -> None:
    puppet = await asyncio.to_thread(Puppet, leash[1], "a token of yesterday")
    assert await asyncio.to_thread(puppet.hear) == "no nobody waits for this task any more"
    puppet.die()


async def test_an_attempt_behind_one_that_does_not_end_is_not_allowed(leash: tuple[Leash, tuple[str, int]]) -> None:
    call = leash[0].issue(local=True)
    first = await asyncio.to_thread(Puppet, leash[1], call.token)
    assert await asyncio.to_thread(first.hear) == "go"
    second = await asyncio.to_thread(Puppet, leash[1], call.token)
    assert "may still be written" in await asyncio.to_thread(second.hear)
    assert not await call.end(0.01)
    first.leave()
    second.die()
    await eventually(lambda: call.holder is None, "the end of the first")
    assert not await call.end(0.01)  # doubt stays


async def test_nobody_is_let_go_after_the_end(leash: tuple[Leash, tuple[str, int]]) -> None:
    call = leash[0].issue(local=True)
    assert await call.end(0)
    puppet = await asyncio.to_thread(Puppet, leash[1], call.token)
    assert (await asyncio.to_thread(puppet.hear)).startswith("no ")
    puppet.die()
    assert call.attempts == 0


async def test_after_two_deaths_on_two_executors_nobody_tries_again(leash: tuple[Leash, tuple[str, int]]) -> None:
    call = leash[0].issue(local=True)
    for number in (1, 2):
        puppet = await asyncio.to_thread(Puppet, leash[1], call.token, parent=number)
        assert await asyncio.to_thread(puppet.hear) == "go"
        puppet.die()
        await eventually(lambda: call.holder is None, "its death")
    third = await asyncio.to_thread(Puppet, leash[1], call.token, parent=3)
    assert "died at this task" in await asyncio.to_thread(third.hear)
    third.die()


async def test_workers_end_with_the_driver(leash: tuple[Leash, tuple[str, int]]) -> None:
    call = leash[0].issue(local=True)
    puppet = await asyncio.to_thread(Puppet, leash[1], call.token)
    assert await asyncio.to_thread(puppet.hear) == "go"
    await leash[0].close()
    assert await asyncio.to_thread(puppet.hear) == ""
    puppet.die()
    assert call.doubtful


async def test_a_port_that_is_taken(leash: tuple[Leash, tuple[str, int]]) -> None:
    with pytest.raises(SessionProblem, match="set host to an address of this machine"):
        await Leash(1).open(*leash[1])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SparkSettings(), ("127.0.0.1", "127.0.0.1")),
        (SparkSettings(master="spark://127.0.0.1:7077,127.0.0.2:7077"), ("127.0.0.1", "127.0.0.1")),
        (SparkSettings(master="sc://127.0.0.1:15002/;token=x"), ("127.0.0.1", "127.0.0.1")),
        (SparkSettings(master="k8s://https://127.0.0.1:6443"), ("127.0.0.1", "127.0.0.1")),
        (SparkSettings(master="yarn", host="compactor.lake"), ("0.0.0.0", "compactor.lake")),  # noqa: S104
    ],
)
def test_addresses(settings: SparkSettings, expected: tuple[str, str]) -> None:
    assert addresses(settings) == expected


def test_a_master_whose_name_nobody_knows() -> None:
    with pytest.raises(SessionProblem, match=r"no way to spark://nowhere\.invalid:1"):
        addresses(SparkSettings(master="spark://nowhere.invalid:1"))
