"""What the JVM says, as lines of the daemon's own log."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from threading import Thread

import structlog

from astha.redaction import Concealment

log = structlog.get_logger(__name__)

_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.ERROR,
}
_LONGEST = 4_000
_KEPT = 40


class LogRelay:
    """Reads until the JVM closes its end. What has no level is from a worker or the launcher: heard at debug. So is
    all that it says while it starts, unless ``aloud``: why it did not start is told by who has started it, once.
    """

    def __init__(self, lines: Iterable[bytes], conceal: Concealment, *, aloud: bool = False) -> None:
        self.aloud = aloud
        self._lines = lines
        self._conceal = conceal
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._thread = Thread(target=self._read, name="spark-log", daemon=True)
        self._thread.start()

    def last_words(self, wait_s: float = 1.0) -> str:
        """Of a JVM that has ended, or does not start."""
        self._thread.join(wait_s)
        return "\n".join(self._last)

    def join(self) -> None:
        self._thread.join(5)

    def _read(self) -> None:
        for raw in self._lines:
            line = self._conceal(raw.decode(errors="replace").rstrip())[:_LONGEST]
            if not line:
                continue
            self._last.append(line)
            level, tab, rest = line.partition("\t")
            if tab and level in _LEVELS:
                logger, _, message = rest.partition("\t")
                log.log(_LEVELS[level] if self.aloud else logging.DEBUG, "spark says", logger=logger, message=message)
            else:
                log.debug("spark says", message=line)
