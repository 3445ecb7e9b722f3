"""Forwards the JVM's log to the daemon's own."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from threading import Thread

import structlog

from astha.redaction import Redactor

log = structlog.get_logger(__name__)

_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.ERROR,
}
_MOST_CHARACTERS = 4_000
_LINES_KEPT = 40


class LogRelay:
    """Reads until the JVM closes its output. Lines without a level are a worker's or the launcher's, and are logged at
    debug. While ``quiet``, so is everything: the starter of the JVM reports why it did not start, once.
    """

    def __init__(self, lines: Iterable[bytes], redact: Redactor, *, quiet: bool = True) -> None:
        self.quiet = quiet
        self._lines = lines
        self._redact = redact
        self._last: deque[str] = deque(maxlen=_LINES_KEPT)
        self._thread = Thread(target=self._read, name="spark-log", daemon=True)
        self._thread.start()

    def last_lines(self, wait_s: float = 1.0) -> str:
        """Waits ``wait_s`` for the end of the output, and returns the last lines of it."""
        self._thread.join(wait_s)
        return "\n".join(self._last)

    def join(self) -> None:
        self._thread.join(5)

    def _read(self) -> None:
        for raw in self._lines:
            line = self._redact(raw.decode(errors="replace").rstrip())[:_MOST_CHARACTERS]
            if not line:
                continue
            self._last.append(line)
            level, tab, rest = line.partition("\t")
            if tab and level in _LEVELS:
                logger, _, message = rest.partition("\t")
                level_number = logging.DEBUG if self.quiet else _LEVELS[level]
                log.log(level_number, "spark log", logger=logger, message=message)
            else:
                log.debug("spark log", message=line)
