from __future__ import annotations

import asyncio

import msgspec
import pytest

from astha.listener.link import ListenerCounts, Query, Reply
from astha.listener.queries import DaemonQueries, DaemonUnresponsive
from tests.waiting import eventually


class ReplyingDaemon:
    """A daemon that replies when the test says so."""

    def __init__(self) -> None:
        self.sent: list[Query] = []
        self.queries = DaemonQueries(self.send, lambda: ListenerCounts(watchers=3))

    def send(self, message: msgspec.Struct) -> None:
        assert isinstance(message, Query)
        self.sent.append(message)

    def reply(self, took_s: float = 0.0) -> None:
        number = self.sent[-1].number
        self.queries.replied(Reply(number, 200, str(number).encode(), took_s=took_s))


async def test_callers_share_a_query_that_is_not_sent_yet_but_never_an_older_one() -> None:
    daemon = ReplyingDaemon()
    first = asyncio.create_task(daemon.queries.query("status", 30))
    await eventually(lambda: len(daemon.sent) == 1, "the first query")
    later = [asyncio.create_task(daemon.queries.query("status", 30)) for _ in range(100)]
    await asyncio.sleep(0)
    daemon.reply()
    await eventually(lambda: len(daemon.sent) == 2, "one query for all later callers")
    daemon.reply()
    assert (await first).body == b"1"
    assert {(await each).body for each in later} == {b"2"}
    assert len(daemon.sent) == 2
    assert daemon.sent[0].counts.watchers == 3


async def test_metrics_are_cached_for_a_while_and_longer_if_they_are_expensive() -> None:
    daemon = ReplyingDaemon()
    first = asyncio.create_task(daemon.queries.query("text", 30))
    await eventually(lambda: len(daemon.sent) == 1, "the query")
    joined = asyncio.create_task(daemon.queries.query("text", 30))
    await asyncio.sleep(0)
    daemon.reply(took_s=10.0)  # of the daemon's loop: so expensive that the next query is due after 500 s
    assert {(await each).body for each in (first, joined)} == {b"1"}
    for _ in range(100):
        assert (await daemon.queries.query("text", 30)).body == b"1"
    assert len(daemon.sent) == 1


async def test_a_daemon_that_does_not_reply() -> None:
    daemon = ReplyingDaemon()
    with pytest.raises(DaemonUnresponsive):
        await daemon.queries.query("readiness", 0.01)
    waiting = asyncio.create_task(daemon.queries.query("readiness", 30))
    await asyncio.sleep(0)
    assert len(daemon.sent) == 1, "the one that is out is not asked again"
    daemon.reply()
    await eventually(lambda: len(daemon.sent) == 2, "the next one")
    daemon.reply()
    assert (await waiting).body == b"2"


async def test_a_reply_to_a_caller_that_is_gone() -> None:
    daemon = ReplyingDaemon()
    acting = asyncio.create_task(daemon.queries.act("pause", "audit", "127.0.0.1"))
    await asyncio.sleep(0)
    assert (daemon.sent[0].kind, daemon.sent[0].component) == ("pause", "audit")
    acting.cancel()
    await asyncio.gather(acting, return_exceptions=True)
    daemon.reply()
