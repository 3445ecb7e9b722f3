from __future__ import annotations

import asyncio

import msgspec
import pytest

from astha.listener.link import Ask, Figures, Reply
from astha.listener.queries import DaemonSilent, Questions
from tests.waiting import eventually


class Answering:
    """A daemon that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []
        self.questions = Questions(self.send, lambda: Figures(watchers=3))

    def send(self, message: msgspec.Struct) -> None:
        assert isinstance(message, Ask)
        self.asked.append(message)

    def answer(self, took_s: float = 0.0) -> None:
        number = self.asked[-1].number
        self.questions.answered(Reply(number, 200, str(number).encode(), took_s=took_s))


async def test_callers_share_a_question_that_is_not_asked_yet_but_never_an_older_one() -> None:
    daemon = Answering()
    first = asyncio.create_task(daemon.questions.ask("status", 30))
    await eventually(lambda: len(daemon.asked) == 1, "the first question")
    later = [asyncio.create_task(daemon.questions.ask("status", 30)) for _ in range(100)]
    await asyncio.sleep(0)
    daemon.answer()
    await eventually(lambda: len(daemon.asked) == 2, "one question for all who came after it")
    daemon.answer()
    assert (await first).body == b"1"
    assert {(await each).body for each in later} == {b"2"}
    assert len(daemon.asked) == 2
    assert daemon.asked[0].figures.watchers == 3


async def test_metrics_are_kept_for_a_while_and_longer_if_they_are_dear() -> None:
    daemon = Answering()
    first = asyncio.create_task(daemon.questions.ask("text", 30))
    await eventually(lambda: len(daemon.asked) == 1, "the question")
    joined = asyncio.create_task(daemon.questions.ask("text", 30))
    await asyncio.sleep(0)
    daemon.answer(took_s=10.0)  # of the daemon's loop: so dear that it is not asked again for 500 s
    assert {(await each).body for each in (first, joined)} == {b"1"}
    for _ in range(100):
        assert (await daemon.questions.ask("text", 30)).body == b"1"
    assert len(daemon.asked) == 1


async def test_a_daemon_that_does_not_answer() -> None:
    daemon = Answering()
    with pytest.raises(DaemonSilent):
        await daemon.questions.ask("readiness", 0.01)
    waiting = asyncio.create_task(daemon.questions.ask("readiness", 30))
    await asyncio.sleep(0)
    assert len(daemon.asked) == 1, "the one that is out is not asked again"
    daemon.answer()
    await eventually(lambda: len(daemon.asked) == 2, "the next one")
    daemon.answer()
    assert (await waiting).body == b"2"


async def test_an_answer_to_a_caller_who_is_gone() -> None:
    daemon = Answering()
    acting = asyncio.create_task(daemon.questions.act("pause", "audit", "127.0.0.1"))
    await asyncio.sleep(0)
    assert (daemon.asked[0].what, daemon.asked[0].component) == ("pause", "audit")
    acting.cancel()
    await asyncio.gather(acting, return_exceptions=True)
    daemon.answer()
