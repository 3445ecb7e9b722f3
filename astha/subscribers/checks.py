"""What a component can try before a daemon runs, for `astha check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec


class CheckResult(msgspec.Struct, frozen=True):
    """One thing that was tried. `remedy` is None if it works; two components may try the same thing, by its name."""

    check: str
    detail: str
    remedy: str | None = None


@runtime_checkable
class Checkable(Protocol):
    """Optional: called on a component that was made and not started. Must leave nothing behind."""

    async def check(self) -> Sequence[CheckResult]: ...
