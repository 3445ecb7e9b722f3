"""Checks that a component makes for `astha check`, before a daemon runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one check. `remedy` is None if it passed. Equal names are one check, by any component."""

    check: str
    detail: str
    remedy: str | None = None


@runtime_checkable
class Checkable(Protocol):
    """Optional: called on a component that was created and not started. Must leave nothing behind."""

    async def check(self) -> Sequence[CheckResult]: ...
