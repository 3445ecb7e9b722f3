from __future__ import annotations

import logging
import socket

import msgspec
import pytest

from astha.listener.link import EventFrame, Link, LogLine, TableLines, daemon_decoder, listener_decoder
from astha.listener.log_forwarding import LogForwarder
from astha.listener.options import tls_context
from tests.tls import CERTIFICATE, ENCRYPTED_KEY, KEY, OTHER_KEY
from tests.waiting import eventually


class TestLogLines:
    @pytest.fixture
    def forwarded(self) -> list[msgspec.Struct]:
        return []

    @pytest.fixture
    def logger(self, forwarded: list[msgspec.Struct]) -> logging.Logger:
        logger = logging.Logger("listener")
        logger.addHandler(LogForwarder(forwarded.append))
        return logger

    def test_a_kind_is_forwarded_once_and_then_with_a_count(
        self, logger: logging.Logger, forwarded: list[msgspec.Struct], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(1000):
            logger.warning("can't accept a connection: %s", number)
            logger.error("socket.accept() out of system resource\nsocket: <%s>" % number)  # noqa: UP031  (as asyncio does)
        assert len(forwarded) == 2
        monkeypatch.setattr("astha.listener.log_forwarding._WINDOW_S", 0.0)
        logger.warning("can't accept a connection: %s", "again")
        assert forwarded[-1] == LogLine(logging.WARNING, "can't accept a connection: again (999 more like it before)")

    def test_not_more_than_twenty_kinds_at_once(self, logger: logging.Logger, forwarded: list[msgspec.Struct]) -> None:
        for number in range(1000):
            logger.error("kind %s" % number)  # noqa: UP031  (another kind each)
        assert len(forwarded) == 20

    def test_fields_of_an_event_are_part_of_the_line(
        self, logger: logging.Logger, forwarded: list[msgspec.Struct]
    ) -> None:
        logger.warning("connection refused", extra={"fields": {"open": 3}})
        assert forwarded == [LogLine(logging.WARNING, "connection refused open=3")]

    def test_information_is_not_forwarded(self, logger: logging.Logger, forwarded: list[msgspec.Struct]) -> None:
        logger.info("for debugging")
        assert forwarded == []


class TestLink:
    async def test_frames_of_every_size_arrive_whole_and_in_order(self) -> None:
        ours, theirs = socket.socketpair()
        got: list[object] = []
        lost: list[bool] = []
        sending = await Link.open(ours, daemon_decoder, got.append, lambda: None)
        await Link.open(theirs, listener_decoder, got.append, lambda: lost.append(True))
        sent = [EventFrame([TableLines("topics", 1, b"x" * size)]) for size in (0, 1, 70_000, 3_000_000, 5)]
        for batch in sent:
            sending.send(batch)
        await eventually(lambda: len(got) == len(sent), "all frames")
        assert got == sent
        assert sending.waiting_bytes == 0
        sending.close()
        await eventually(lambda: bool(lost), "the end")
        sending.send(sent[0])  # to a closed link: no error

    async def test_unsent_bytes_are_counted(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            sending = await Link.open(ours, daemon_decoder, lambda _: None, lambda: None)
            for _ in range(8):
                sending.send(EventFrame([TableLines("topics", 1, b"x" * 1_000_000)]))
            assert sending.waiting_bytes > 4_000_000
            sending.close()


class TestTls:
    def test_a_certificate_and_its_key(self) -> None:
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
    def test_files_that_are_not_a_certificate_and_its_key(
        self, certificate: object, key: object, complaint: str
    ) -> None:
        with pytest.raises((OSError, ValueError), match=complaint):
            tls_context(str(certificate), str(key))
