"""The listener's log: its lines go to the daemon, which redacts and formats them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

from astha.listener.link import LogLine

_WINDOW_S = 10.0
_MAX_LINES = 20
_KIND_LENGTH = 80


def use_standard_logging() -> None:
    """Makes structlog pass its events to the standard library's loggers, for the whole process."""
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, _to_record],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _to_record(_logger: WrappedLogger, _method: str, event: EventDict) -> tuple[tuple[str], dict[str, object]]:
    text, exc_info = event.pop("event"), event.pop("exc_info", None)
    return (text,), {"exc_info": exc_info, "extra": {"fields": event}}


class LogForwarder(logging.Handler):
    """Forwards warnings and errors: within ten seconds one line of each kind, with a count of those suppressed before,
    and at most twenty lines.
    """

    def __init__(self, send: Callable[[msgspec.Struct], None]) -> None:
        super().__init__(logging.WARNING)
        self._send = send
        self._began = float("-inf")
        self._suppressed: dict[str, int] = {}  # by kind, since it was last sent
        self._sent: set[str] = set()  # kinds, within this window

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now - self._began >= _WINDOW_S:
            self._began = now
            self._sent.clear()
        kind = f"{record.name} {str(record.msg).partition(chr(10))[0][:_KIND_LENGTH]}"
        if kind in self._sent or len(self._sent) >= _MAX_LINES:
            if kind in self._sent:
                self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return
        self._sent.add(kind)
        suppressed = self._suppressed.pop(kind, 0)
        text = self.format(record) + (f" ({suppressed} more like it before)" if suppressed else "")
        self._send(LogLine(record.levelno, text.encode(errors="backslashreplace").decode()))

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        first, newline, rest = super().format(record).partition("\n")
        return " ".join([first, *(f"{name}={value}" for name, value in fields.items())]) + newline + rest
