"""The one module that relies on parts of aiohttp that are not documented.

`tests/unit/astha/listener/test_aiohttp_workarounds.py` fails if an upgrade changes any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

_NO_TARGET = URL("/no-target")

_CLIENT_ERRORS = (HttpProcessingError, web.RequestPayloadError, UnicodeEncodeError)
"""Errors that aiohttp raises for malformed requests: it quotes an Expect header that is not text. Errors of our routes
never get that far.
"""


def accept_requests_without_target(server: web.Server) -> None:
    """aiohttp's parser may accept a request without a target, and its task then fails with an AttributeError. Such a
    request is answered like one for an unknown path.
    """
    server.request_factory = with_target(server.request_factory)


def with_target(make_request: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    def make(message: Any, *others: Any) -> web.BaseRequest:
        return make_request(message if message.url is not None else message._replace(url=_NO_TARGET), *others)

    return make


def http_logger() -> logging.Logger:
    """Returns a logger for aiohttp that drops the tracebacks of malformed requests, which are the client's fault."""
    logger = logging.getLogger("astha.listener.http")
    logger.addFilter(_is_our_error)
    return logger


def _is_our_error(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], _CLIENT_ERRORS))
