"""Logs one traceback for each distinct failure of a component.

Two failures are the same if an error of the same type was raised in the same line. Without this limit a component that
fails in every delivery would fill the disk.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from types import TracebackType
from typing import TypeAlias

import msgspec
import structlog

from registry.clock import Clock

log = structlog.get_logger(__name__)

_REPEAT_S = 3600.0
"""A failure that was logged is logged again after this time, with the number of repetitions."""

_REMEMBERED = 256
"""Distinct failures of all components; the least recently seen is forgotten first."""

_BURST, _BURST_S = 10, 60.0
"""Limits the tracebacks of one component per time: errors that differ each time must not fill the log."""

Distinct: TypeAlias = tuple[str, type[BaseException], str, int]


class _Logged(msgspec.Struct):
    at: float
    repeated: int = 0


class FailureLog:
    """The failures of all components of a daemon, kept over changes of leadership."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: OrderedDict[Distinct, _Logged] = OrderedDict()
        self._recent: dict[str, deque[float]] = {}

    def note(self, component: str, call: str, error: BaseException) -> None:
        """Logs the traceback of an error that `call` raised, unless it was logged recently."""
        now = self._clock.monotonic()
        distinct = (component, type(error), *_raised_in(error))
        logged = self._logged.get(distinct)
        if logged is not None:
            self._logged.move_to_end(distinct)
            if now - logged.at < _REPEAT_S:
                logged.repeated += 1
                return
        recent = self._recent.setdefault(component, deque(maxlen=_BURST))
        if len(recent) == _BURST and now - recent[0] < _BURST_S:
            return
        recent.append(now)
        self._logged[distinct] = _Logged(now)
        if len(self._logged) > _REMEMBERED:
            self._logged.popitem(last=False)
        log.error(
            "component failed",
            component=component,
            call=call,
            error=repr(error),
            repeated=0 if logged is None else logged.repeated,
            exc_info=(type(error), error, error.__traceback__),
        )


def _raised_in(error: BaseException) -> tuple[str, int]:
    """Returns file and line. An error made by the lane (a timeout) counts as raised where its cause was."""
    trace: TracebackType | None = error.__traceback__
    cause = error.__cause__
    if cause is not None and cause.__traceback__ is not None:
        trace = cause.__traceback__
    if trace is None:
        return "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno
