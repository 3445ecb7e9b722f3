"""Log lines: structlog's and the standard library's through one handler, as JSON or for a console, times in UTC."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from astha.redaction import Redactor
from astha.settings import LogSettings

_CHATTY = (
    *("aiohttp", "aiosqlite", "alembic", "asyncio", "boto3", "botocore", "fsspec", "grpc", "psycopg", "py4j"),
    *("pyiceberg", "pyspark", "requests", "s3fs", "sqlalchemy", "urllib3"),
)
"""Libraries whose own news are for those who debug the libraries. At debug level some write secrets: py4j the token of
its gateway, with which any local user can run code in the JVM, and every value that is sent there.
"""

_OURS = frozenset(["timestamp", "level", "logger"])  # of a line: no text from outside

_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]


class _Redacting:
    """The last processor before a line is rendered. A library's error may carry a URL with its password, so every value
    is looked at. The rendered line is not: replacing text in it could break its syntax.
    """

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {name: value if name in _OURS else self._redact.values(value) for name, value in event.items()}


def configure_logging(settings: LogSettings, redact: Redactor, stream: TextIO | None = None) -> None:
    """For the whole process; doing it again replaces what was."""
    stream = stream or sys.stderr
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # loggers are made at import, before this
    )
    handler = logging.StreamHandler(stream)
    renderers = _renderers(settings, redact, colours=stream.isatty())
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=renderers, foreign_pre_chain=_SHARED))
    logging.getLogger().handlers[:] = [handler]
    logging.captureWarnings(True)
    set_level(settings.level)


def set_level(level: str) -> None:
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(number)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def _renderers(settings: LogSettings, redact: Redactor, *, colours: bool) -> list[Processor]:
    meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    before: list[Processor] = [meta, structlog.processors.format_exc_info, _Redacting(redact)]
    if settings.format == "json":
        return [*before, structlog.processors.JSONRenderer(default=str)]
    plain = structlog.dev.plain_traceback
    return [*before, structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]
