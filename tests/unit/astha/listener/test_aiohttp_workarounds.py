"""Canaries: what `astha.listener.aiohttp_workarounds` relies on in aiohttp. They fail when an upgrade changes it."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, cast

import pytest
from aiohttp import http_exceptions, web
from aiohttp.http_parser import HttpRequestParser
from aiohttp.test_utils import make_mocked_request
from yarl import URL

from astha.listener.aiohttp_workarounds import accept_requests_without_target, http_logger, with_target

LOOK = (
    "aiohttp has changed: read its changelog for web.Server, the request parser and http_exceptions, correct "
    "astha/listener/aiohttp_workarounds.py, run tests/fuzz/test_http.py, then this list"
)


async def _handler(_request: web.BaseRequest) -> web.Response:
    return web.Response()


async def test_servers_have_a_request_factory() -> None:
    server = web.Server(_handler)
    before = getattr(server, "request_factory", None)
    assert callable(before), LOOK
    accept_requests_without_target(server)
    assert server.request_factory is not before, LOOK


def test_request_messages_have_a_url_and_can_be_copied() -> None:
    message = make_mocked_request("GET", "/status")._message
    assert message.url == URL("/status"), LOOK
    assert message._replace(url=URL("/")).url == URL("/"), LOOK
    assert HttpRequestParser is not None, LOOK


def test_errors_of_malformed_requests_share_a_base() -> None:
    for error in (http_exceptions.BadHttpMessage, http_exceptions.BadStatusLine, http_exceptions.InvalidHeader):
        assert issubclass(error, http_exceptions.HttpProcessingError), LOOK


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (http_exceptions.BadStatusLine("x"), False),
        (web.RequestPayloadError("x"), False),
        (ValueError("x"), True),
    ],
)
def test_only_errors_of_our_own_are_logged(error: Exception, kept: bool) -> None:
    record = logging.LogRecord("x", logging.ERROR, "x", 1, "x", None, (type(error), error, None))
    assert bool(http_logger().filter(record)) == kept


class _Message(NamedTuple):
    """Like aiohttp's, as far as it matters here."""

    url: URL | None


@pytest.mark.parametrize(("url", "found"), [(None, URL("/no-target")), (URL("/status"), URL("/status"))])
def test_a_request_without_a_target_is_answered(url: URL | None, found: URL) -> None:
    """aiohttp ends the task of such a connection with an AttributeError, and the caller waits for nothing."""
    make = with_target(cast("Any", lambda message, *others: (message.url, others)))
    assert make(_Message(url), "payload", "protocol") == (found, ("payload", "protocol"))
