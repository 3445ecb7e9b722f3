from __future__ import annotations

import logging
import socket
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from yarl import URL

from astha.listener.link import Batch, Link, Part, Said, daemon_decoder, listener_decoder
from astha.listener.options import tls_context
from astha.listener.process import RelayingHandler, with_target
from tests.tls import CERTIFICATE, ENCRYPTED_KEY, KEY, OTHER_KEY
from tests.waiting import eventually


class TestLogLines:
    @pytest.fixture
    def said(self) -> list[msgspec.Struct]:
        return []

    @pytest.fixture
    def logger(self, said: list[msgspec.Struct]) -> logging.Logger:
        logger = logging.Logger("listener")
        logger.addHandler(RelayingHandler(said.append))
        return logger

    def test_a_kind_is_said_once_and_then_with_a_count(
        self, logger: logging.Logger, said: list[msgspec.Struct], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(1000):
            logger.warning("can't accept a connection: %s", number)
            logger.error("socket.accept() out of system resource\nsocket: <%s>" % number)  # noqa: UP031  (as asyncio does)
        assert len(said) == 2
        monkeypatch.setattr("astha.listener.process._LOG_EVERY_S", 0.0)
        logger.warning("can't accept a connection: %s", "again")
        assert said[-1] == Said(logging.WARNING, "can't accept a connection: again (999 more like it before)")

    def test_not_more_than_twenty_kinds_at_once(self, logger: logging.Logger, said: list[msgspec.Struct]) -> None:
        for number in range(1000):
            logger.error("kind %s" % number)  # noqa: UP031  (another kind each)
        assert len(said) == 20

    def test_what_is_only_information_stays(self, logger: logging.Logger, said: list[msgspec.Struct]) -> None:
        logger.info("for those who debug")
        assert said == []


class TestLink:
    async def test_frames_of_every_size_arrive_whole_and_in_order(self) -> None:
        ours, theirs = socket.socketpair()
        got: list[object] = []
        lost: list[bool] = []
        sending = await Link.open(ours, daemon_decoder, got.append, lambda: None)
        await Link.open(theirs, listener_decoder, got.append, lambda: lost.append(True))
        sent = [Batch([Part("topics", 1, b"x" * size)]) for size in (0, 1, 70_000, 3_000_000, 5)]
        for batch in sent:
            sending.send(batch)
        await eventually(lambda: len(got) == len(sent), "all frames")
        assert got == sent
        assert sending.waiting_bytes == 0
        sending.close()
        await eventually(lambda: bool(lost), "the end")
        sending.send(sent[0])  # to nobody, and no error

    async def test_what_the_other_end_does_not_take_can_be_seen(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            sending = await Link.open(ours, daemon_decoder, lambda _: None, lambda: None)
            for _ in range(8):
                sending.send(Batch([Part("topics", 1, b"x" * 1_000_000)]))
            assert sending.waiting_bytes > 4_000_000
            sending.close()


class TestTls:
    def test_a_pair(self) -> None:
        assert tls_context(str(CERTIFICATE), str(KEY)) is not None
        assert tls_context(None, None) is None

    @pytest.mark.parametrize(
        ("certificate", "key", "complaint"),
        [
            (CERTIFICATE, OTHER_KEY, "KEY_VALUES_MISMATCH"),
            (KEY, KEY, "SSL"),
            (CERTIFICATE, CERTIFICATE.parent / "absent.key", "No such file"),
            (CERTIFICATE, ENCRYPTED_KEY, "the key is encrypted"),
        ],
    )
    def test_no_pair(self, certificate: object, key: object, complaint: str) -> None:
        with pytest.raises((OSError, ValueError), match=complaint):
            tls_context(str(certificate), str(key))


class _Message(NamedTuple):
    """As aiohttp's, as far as it matters here."""

    url: URL | None


@pytest.mark.parametrize(("url", "found"), [(None, URL("/")), (URL("/status"), URL("/status"))])
def test_a_request_without_a_target_is_answered(url: URL | None, found: URL) -> None:
    """aiohttp ends the task of such a connection with an AttributeError, and the caller waits for nothing."""
    make = with_target(cast("Any", lambda message, *others: (message.url, others)))
    assert make(_Message(url), "payload", "protocol") == (found, ("payload", "protocol"))
