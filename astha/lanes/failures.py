"""One traceback for each distinct failure of a component.

Two failures are the same if an error of the same type was raised in the same line. A component that fails in every
delivery would otherwise fill the disk, and one whose traceback is never shown can't be mended.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from types import TracebackType
from typing import TypeAlias

import msgspec
import structlog

from registry.clock import Clock

log = structlog.get_logger(__name__)

_AGAIN_S = 3600.0
"""A failure that was shown before is shown again after so long, with the number of repetitions."""

_REMEMBERED = 256
"""Distinct failures, of all components; the one that was not seen for longest is forgotten first."""

_BURST, _BURST_S = 10, 60.0
"""Tracebacks of one component within so long: errors that are raised in a new line each time must not fill the log."""

Distinct: TypeAlias = tuple[str, type[BaseException], str, int]


class _Shown(msgspec.Struct):
    at: float
    repeated: int = 0


class FailureLog:
    """Of all components of a daemon. Kept over changes of leadership, so that these repeat nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shown: OrderedDict[Distinct, _Shown] = OrderedDict()
        self._lately: dict[str, deque[float]] = {}

    def note(self, component: str, call: str, error: BaseException) -> None:
        """`call` has raised `error`: log its traceback, unless that was done lately."""
        now = self._clock.monotonic()
        distinct = (component, type(error), *_raised_in(error))
        shown = self._shown.get(distinct)
        if shown is not None:
            self._shown.move_to_end(distinct)
            if now - shown.at < _AGAIN_S:
                shown.repeated += 1
                return
        lately = self._lately.setdefault(component, deque(maxlen=_BURST))
        if len(lately) == _BURST and now - lately[0] < _BURST_S:
            return
        lately.append(now)
        self._shown[distinct] = _Shown(now)
        if len(self._shown) > _REMEMBERED:
            self._shown.popitem(last=False)
        log.error(
            "component failed",
            component=component,
            call=call,
            error=repr(error),
            repeated=0 if shown is None else shown.repeated,
            exc_info=(type(error), error, error.__traceback__),
        )


def _raised_in(error: BaseException) -> tuple[str, int]:
    """File and line. An error that the lane made (a timeout) was raised where its cause was."""
    trace: TracebackType | None = error.__traceback__
    cause = error.__cause__
    if cause is not None and cause.__traceback__ is not None:
        trace = cause.__traceback__
    if trace is None:
        return "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno
