"""Logging: structlog and the standard library share one handler, as JSON or for a console, with times in UTC."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from astha.redaction import Redactor
from astha.settings import LogSettings

_LIBRARIES = (
    *(
        "aiohttp",
        "aiosqlite",
        "alembic",
        "asyncio",
        "boto3",
        "botocore",
        "fsspec",
        "grpc",
        "opentelemetry",
        "psycopg",
        "py4j",
    ),
    *("pyiceberg", "pyspark", "requests", "s3fs", "sqlalchemy", "urllib3"),
)
"""Libraries that log at warning level or above only. Some write secrets at debug level: py4j logs the token of its
gateway, with which any local user can run code in the JVM, and every value that is sent there.
"""

_OWN_FIELDS = frozenset(["timestamp", "level", "logger"])  # never contain text from outside

_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]


class _Redacting:
    """The last processor before a line is rendered. It redacts every value, because a library's error may contain a URL
    with its password. It does not redact the rendered line: that could break its syntax.
    """

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {name: value if name in _OWN_FIELDS else self._redact.values(value) for name, value in event.items()}


def configure_logging(
    settings: LogSettings, redact: Redactor, stream: TextIO | None = None, processors: Sequence[Processor] = ()
) -> None:
    """Configures the whole process. A second call replaces the first. `processors` may add fields to each line."""
    stream = stream or sys.stderr
    shared = [*_SHARED, *processors]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # loggers are created at import, before this
    )
    handler = logging.StreamHandler(stream)
    renderers = _renderers(settings, redact, colours=stream.isatty())
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=renderers, foreign_pre_chain=shared))
    logging.getLogger().handlers[:] = [handler]
    logging.captureWarnings(True)
    set_level(settings.level)


def set_level(level: str) -> None:
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(number)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def _renderers(settings: LogSettings, redact: Redactor, *, colours: bool) -> list[Processor]:
    meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    first: list[Processor] = [meta, structlog.processors.format_exc_info, _Redacting(redact)]
    if settings.format == "json":
        return [*first, structlog.processors.JSONRenderer(default=str)]
    plain = structlog.dev.plain_traceback
    return [*first, structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]
