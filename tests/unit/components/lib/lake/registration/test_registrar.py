from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from astha.testing import ManualClock
from components.lib.lake.registration.registrar import Registrar, RegistrarClosed, Result, RetryPolicy
from registry.errors import AlreadyExists, Conflict, NotFound, RegistryError, Unavailable
from registry.inputs import Registration
from registry.models import TableFile
from tests.doubles.file_store import Answer, FileStore
from tests.samples import file


def of(*paths: str, table: int = 1, owner: str | None = None) -> Registration:
    return Registration(table_id=table, files=[file(path) for path in paths], intents_of=owner)


def paths(files: list[TableFile]) -> list[str]:
    return [file.file_path for file in files]


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def store() -> FileStore:
    return FileStore()


@pytest.fixture
def time() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def registrar(store: FileStore, time: ManualClock) -> AsyncIterator[Registrar]:
    async with Registrar(store, time, max_waiting_files=10, retries=RetryPolicy(attempts=3)) as registrar:
        yield registrar
        store.gate.set()


# Groups


async def test_registrations_during_a_commit_form_the_next_group(registrar: Registrar, store: FileStore) -> None:
    store.gate.clear()
    results = [await registrar.register(of("a"))]
    await store.reached(1)
    results += [await registrar.register(of(path)) for path in ("b", "c", "d")]
    assert registrar.statistics.waiting_files == 3
    store.gate.set()
    assert [paths(await result) for result in results] == [["a"], ["b"], ["c"], ["d"]]
    assert store.calls == [["a"], ["b", "c", "d"]]
    assert registrar.statistics.groups == 2


async def test_no_timer_delays_a_registration(registrar: Registrar, store: FileStore) -> None:
    """The clock does not move."""
    assert paths(await (await registrar.register(of("a", "b")))) == ["a", "b"]


async def test_synchronous_by_registrar_or_by_call(store: FileStore, time: ManualClock) -> None:
    async with Registrar(store, time, sync=True) as registrar:
        assert (await registrar.register(of("a"))).done()
        assert not (await registrar.register(of("b"), sync=False)).done()
    async with Registrar(store, time) as registrar:
        assert not (await registrar.register(of("c"))).done()
        assert (await registrar.register(of("d"), sync=True)).done()
        with pytest.raises(AlreadyExists):
            await registrar.register(of("d"), sync=True)


async def test_a_callback_gets_the_result(registrar: Registrar) -> None:
    told: list[Result] = []
    result = await registrar.register(of("a"), callback=told.append)
    await result
    await settle()
    assert told == [result]


# Room


async def test_a_full_queue_makes_callers_wait_in_order(registrar: Registrar, store: FileStore) -> None:
    store.gate.clear()
    await registrar.register(of("first"))
    await store.reached(1)
    await registrar.register(of(*(f"a{number}" for number in range(8))))
    large = asyncio.create_task(registrar.register(of("b0", "b1", "b2")))
    await settle()
    small = asyncio.create_task(registrar.register(of("c")))  # would fit, but is not the first
    await settle()
    assert not large.done()
    assert not small.done()
    assert registrar.statistics.waiting_callers == 2
    store.gate.set()
    await (await large)
    await (await small)
    assert [len(call) for call in store.calls] == [1, 8, 4]
    assert registrar.statistics.waiting_files == 0


async def test_a_registration_larger_than_the_queue_is_sent_alone(registrar: Registrar, store: FileStore) -> None:
    store.gate.clear()
    await registrar.register(of("first"))
    await store.reached(1)
    await registrar.register(of("before"))
    huge = asyncio.create_task(registrar.register(of(*(f"h{number}" for number in range(25)))))
    after = asyncio.create_task(registrar.register(of("after")))
    await settle()
    assert not huge.done()
    store.gate.set()
    assert len(await (await huge)) == 25
    await (await after)
    assert [len(call) for call in store.calls] == [1, 1, 25, 1]


@pytest.mark.parametrize("granted", [False, True])
async def test_a_caller_cancelled_while_waiting_for_room_takes_none(
    registrar: Registrar, store: FileStore, granted: bool
) -> None:
    store.gate.clear()
    await registrar.register(of("first"))
    await store.reached(1)
    await registrar.register(of(*(f"a{number}" for number in range(10))))
    gone = asyncio.create_task(registrar.register(of("gone")))
    other = asyncio.create_task(registrar.register(of("other")))
    await settle()
    if granted:
        store.on_call = gone.cancel  # the group that is sent has made room in the same step
    else:
        gone.cancel()
    store.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await (await other)
    await registrar.flush()
    assert (1, "gone") not in store.files
    assert registrar.statistics.waiting_files == 0
    assert registrar.statistics.waiting_callers == 0


# One bad registration among good ones


@pytest.mark.parametrize("bad", range(7))
async def test_a_refused_registration_fails_alone(registrar: Registrar, store: FileStore, bad: int) -> None:
    await registrar.register(of("there"), sync=True)
    results = [await registrar.register(of("there" if number == bad else f"f{number}")) for number in range(7)]
    outcomes = await asyncio.gather(*results, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [AlreadyExists if n == bad else list for n in range(7)]
    assert registrar.statistics.registrations == 7
    assert registrar.statistics.failures == 1


async def test_each_refused_registration_gets_its_own_error(registrar: Registrar, store: FileStore) -> None:
    store.intents = {"mine": "me", "taken": "cleaner"}
    results = [
        await registrar.register(registration)
        for registration in (
            of("a"),
            of("nowhere", table=9),
            of("taken", owner="me"),
            of("mine", owner="me"),
            of("b", table=2),
            of("a"),
        )
    ]
    outcomes = await asyncio.gather(*results, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [list, NotFound, Conflict, list, list, AlreadyExists]


async def test_registrations_named_by_an_error_are_retried_alone(registrar: Registrar, store: FileStore) -> None:
    store.intents = {f"f{number}": "me" for number in (0, 1, 3, 4)}
    results = [await registrar.register(of(f"f{number}", owner="me")) for number in range(5)]
    await asyncio.gather(*results, return_exceptions=True)
    assert store.calls == [["f0", "f1", "f2", "f3", "f4"], ["f0", "f1", "f3", "f4"], ["f2"]]


async def test_an_unexpected_error_fails_one_registration_only(registrar: Registrar, store: FileStore) -> None:
    store.script.extend([Answer.BROKEN, Answer.GOOD, Answer.BROKEN])
    results = [await registrar.register(of(path)) for path in ("a", "b")]
    outcomes = await asyncio.gather(*results, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [list, TypeError]
    assert paths(await (await registrar.register(of("c")))) == ["c"]


# No answer


@pytest.mark.parametrize("owner", [None, "me"])
@pytest.mark.parametrize("lost", [Answer.LOST_BEFORE, Answer.LOST_AFTER])
async def test_a_lost_response_is_retried_and_registers_once(
    registrar: Registrar, store: FileStore, time: ManualClock, lost: Answer, owner: str | None
) -> None:
    store.intents = {"a": "me", "b": "me"}
    store.script.extend([lost, Answer.LOST_BEFORE])
    results = [await registrar.register(of(path, owner=owner)) for path in ("a", "b")]
    await time.advance(1)
    assert [paths(await result) for result in results] == [["a"], ["b"]]
    assert len(store.files) == 2
    assert registrar.statistics.retries in (1, 2)


@pytest.mark.parametrize("owner", [None, "me"])
async def test_a_file_registered_by_a_lost_call_and_removed_since_is_not_registered_again(
    registrar: Registrar, store: FileStore, time: ManualClock, owner: str | None
) -> None:
    store.intents = {"a": "me", "b": "me"}
    store.script.append(Answer.LOST_AFTER)
    result = await registrar.register(of("a", "b", owner=owner))
    await store.reached(1)
    await settle()
    store.remove(1, "a")
    await time.advance(1)
    assert paths(await result) == ["a", "b"]
    assert list(store.files) == [(1, "b")]


async def test_another_writers_file_is_not_mistaken_for_ours(
    registrar: Registrar, store: FileStore, time: ManualClock
) -> None:
    await registrar.register(Registration(table_id=1, files=[file("a", rows=11)]), sync=True)
    store.script.append(Answer.LOST_BEFORE)
    result = await registrar.register(of("a"))
    await time.advance(1)
    with pytest.raises(AlreadyExists):
        await result


async def test_a_refused_registration_in_an_unconfirmed_group(
    registrar: Registrar, store: FileStore, time: ManualClock
) -> None:
    store.intents = {"a": "me", "b": "me"}
    store.script.append(Answer.LOST_BEFORE)
    results = [await registrar.register(of(path, owner="me")) for path in ("a", "x", "b")]
    await time.advance(1)
    outcomes = await asyncio.gather(*results, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [list, Conflict, list]


async def test_after_the_last_attempt_each_gets_its_own_error(
    registrar: Registrar, store: FileStore, time: ManualClock
) -> None:
    store.script.extend([Answer.LOST_BEFORE] * 3)
    results = [await registrar.register(of(path)) for path in ("a", "b")]
    await time.advance(60)
    first, second = await asyncio.gather(*results, return_exceptions=True)
    assert isinstance(first, Unavailable)
    assert isinstance(second, Unavailable)
    assert first is not second
    assert "a of table 1" in str(first)
    assert "intents tell" in str(first)
    assert paths(await (await registrar.register(of("c")))) == ["c"]


async def test_a_refusal_that_cannot_be_verified_is_unavailable(
    registrar: Registrar, store: FileStore, time: ManualClock
) -> None:
    store.intents = {"a": "me"}
    store.script.append(Answer.LOST_AFTER)
    store.reads.extend([Answer.LOST_BEFORE] * 3)
    result = await registrar.register(of("a", owner="me"))
    await time.advance(60)
    with pytest.raises(Unavailable, match="may be registered already"):
        await result


async def test_if_the_registry_fails_during_a_split_the_rest_fails_at_once(
    registrar: Registrar, store: FileStore, time: ManualClock
) -> None:
    await registrar.register(of("there"), sync=True)
    store.script.extend([Answer.GOOD, *[Answer.LOST_BEFORE] * 3])
    results = [await registrar.register(of(path)) for path in ("there", "a", "b", "c")]
    await time.advance(60)
    outcomes = await asyncio.gather(*results, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 4
    assert len(store.calls) == 1 + 1 + 3


# Ends


async def test_flush_waits_for_what_was_accepted_and_raises_nothing(registrar: Registrar, store: FileStore) -> None:
    await registrar.flush()
    store.gate.clear()
    results = [await registrar.register(of("a")), await registrar.register(of("z", table=9))]
    flush = asyncio.create_task(registrar.flush())
    await settle()
    assert not flush.done()
    store.gate.set()
    await flush
    assert [type(result.exception()) for result in results] == [type(None), NotFound]


async def test_closing_commits_what_was_accepted(store: FileStore, time: ManualClock) -> None:
    store.gate.clear()
    registrar = Registrar(store, time, max_waiting_files=1)
    async with registrar:
        results = [await registrar.register(of("a"))]
        await store.reached(1)
        results.append(await registrar.register(of("b")))
        late = asyncio.create_task(registrar.register(of("c")))
        await settle()
        asyncio.get_running_loop().call_soon(store.gate.set)
    assert [paths(await result) for result in results] == [["a"], ["b"]]
    with pytest.raises(RegistrarClosed):
        await late
    with pytest.raises(RegistrarClosed):
        await registrar.register(of("d"))
    await registrar.close()
    assert list(store.files) == [(1, "a"), (1, "b")]


async def test_close_fails_what_is_left_after_the_timeout(store: FileStore, time: ManualClock) -> None:
    store.gate.clear()
    registrar = Registrar(store, time)
    async with registrar:
        results = [await registrar.register(of("a"))]
        await store.reached(1)
        results.append(await registrar.register(of("b")))
        flush = asyncio.create_task(registrar.flush())
        closing = asyncio.create_task(registrar.close(5))
        await time.advance(4.9)
        assert not closing.done()
        await time.advance(0.2)
        await closing
        await flush
    sent, unsent = await asyncio.gather(*results, return_exceptions=True)
    assert isinstance(sent, Unavailable)
    assert "may be registered" in str(sent)
    assert isinstance(unsent, Unavailable)
    assert "not registered" in str(unsent)


async def test_a_registrar_that_is_not_open_accepts_nothing(store: FileStore, time: ManualClock) -> None:
    registrar = Registrar(store, time)
    with pytest.raises(RegistrarClosed):
        await registrar.register(of("a"))
    await registrar.close()
    with pytest.raises(ValueError, match="max_waiting_files"):
        Registrar(store, time, max_waiting_files=0)


async def test_an_accepted_registration_survives_the_cancellation_of_its_caller(
    registrar: Registrar, store: FileStore
) -> None:
    store.gate.clear()
    caller = asyncio.create_task(registrar.register(of("a"), sync=True))
    await store.reached(1)
    waiting = asyncio.create_task(registrar.register(of("b"), sync=True))
    await settle()
    caller.cancel()
    waiting.cancel()
    store.gate.set()
    await asyncio.gather(caller, waiting, return_exceptions=True)
    await registrar.flush()
    assert list(store.files) == [(1, "a"), (1, "b")]
    assert store.calls == [["a"], ["b"]]


async def test_a_failure_that_is_never_awaited_is_reported_once(registrar: Registrar, store: FileStore) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    seen = await registrar.register(of("x", table=9))
    await registrar.register(of("y", table=9))
    await registrar.flush()
    with pytest.raises(RegistryError):
        await seen
    del seen
    gc.collect()
    assert [type(context["exception"]) for context in reported] == [NotFound]


# Pace


class SlowStore(FileStore):
    """Each call takes time on the test's clock."""

    def __init__(self, time: ManualClock) -> None:
        super().__init__()
        self._time = time

    async def register_files(self, registrations: Sequence[Registration]) -> list[list[TableFile]]:
        await self._time.sleep(0.01)
        return await super().register_files(registrations)


async def test_a_registrar_pauses_after_a_group(time: ManualClock) -> None:
    store = SlowStore(time)
    async with Registrar(store, time, pause_factor=10) as registrar:
        first = await registrar.register(of("a"))
        await time.advance(0.01)
        assert first.done()
        later = [await registrar.register(of("b"))]
        await time.advance(0.05)
        later.append(await registrar.register(of("c")))
        assert store.calls == [["a"]]
        await time.advance(0.06)
        await asyncio.gather(*later)
        assert store.calls == [["a"], ["b", "c"]]
        store.gate.set()
        await _finish(registrar, time)


@pytest.mark.parametrize("how", ["flush", "sync", "commit_now", "room", "close"])
async def test_the_pause_ends_when_a_caller_waits(time: ManualClock, how: str) -> None:
    store = SlowStore(time)
    async with Registrar(store, time, pause_factor=10_000, max_waiting_files=1) as registrar:
        first = await registrar.register(of("a"))
        await time.advance(0.01)
        assert first.done()
        second = await registrar.register(of("b"))
        await settle()
        assert store.calls == [["a"]]
        waiting: asyncio.Task[Any] | None = None
        if how == "commit_now":
            registrar.commit_now()
        elif how == "room":
            waiting = asyncio.create_task(registrar.register(of("c")))
        else:
            call = {"flush": registrar.flush, "close": registrar.close}.get(how)
            waiting = asyncio.create_task(call() if call else registrar.register(of("c"), sync=True))
        await time.advance(0.01)
        await settle()
        assert second.done()
        await _finish(registrar, time)
        if waiting is not None:
            await waiting


async def _finish(registrar: Registrar, time: ManualClock) -> None:
    """Closes it while the clock advances."""
    closing = asyncio.create_task(registrar.close())
    while not closing.done():
        await time.advance(0.01)
    await closing
