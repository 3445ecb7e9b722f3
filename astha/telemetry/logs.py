"""Log lines: structlog's and the standard library's through one handler, as JSON or for a console, times in UTC."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import Processor

from astha.concealment import Concealment
from astha.settings import LogSettings

_CHATTY = ("aiohttp", "aiosqlite", "alembic", "asyncio", "psycopg", "sqlalchemy")
"""Libraries whose own news are for those who debug the libraries."""

_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]


class _ConcealingFormatter(structlog.stdlib.ProcessorFormatter):
    """The whole line is looked at, because a library's error may carry a URL with its password."""

    def __init__(self, conceal: Concealment, processors: list[Processor]) -> None:
        super().__init__(processors=processors, foreign_pre_chain=_SHARED)
        self._conceal = conceal

    def format(self, record: logging.LogRecord) -> str:
        return self._conceal(super().format(record))


def configure_logging(settings: LogSettings, conceal: Concealment, stream: TextIO | None = None) -> None:
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
    handler.setFormatter(_ConcealingFormatter(conceal, _renderers(settings, colours=stream.isatty())))
    logging.getLogger().handlers[:] = [handler]
    logging.captureWarnings(True)
    set_level(settings.level)


def set_level(level: str) -> None:
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(number)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def _renderers(settings: LogSettings, *, colours: bool) -> list[Processor]:
    meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if settings.format == "json":
        return [meta, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    plain = structlog.dev.plain_traceback
    return [meta, structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]
