"""Arguments that no verb may accept, even past the type checker."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from registry.errors import Invalid

BAD_TEXT: list[Any] = ["nul\0", "\ud800", "\udcff", None, 5, b"x"]
"""Not text that every backend can store."""

BAD_NAMES: list[Any] = ["", "a/b", "/", ".", "..", "x" * 256, "a\nb", *BAD_TEXT]

BAD_PATHS: list[Any] = ["", "x" * 2_049, "ä" * 1_025, *BAD_TEXT]

BAD_COUNTS: list[Any] = [-1, -(2**63), 2**63, 2**200, True, 1.0, "1", float("nan")]
"""Not 64-bit integers from zero."""


class Refused(Protocol):
    async def __call__(self, call: Awaitable[object], field: str, value: object) -> None:
        """The call must raise `Invalid` that names field and value."""
        ...


async def complaint(call: Awaitable[object], field: str, value: object) -> str | None:
    """Returns what is wrong with the refusal of the value, or None."""
    what = f"{field} = {repr(value)[:40]}"
    try:
        await call
    except Invalid as error:
        if error.field.split(" of row ")[0] != field or field not in str(error):
            return f"{what}: names {error.field!r}"
        if error.value is not value and error.value != value:
            return f"{what}: says {error.value!r}"
        return None if len(str(error)) < 300 else f"{what}: goes on and on"
    except Exception as error:
        return f"{what}: {error!r}"
    return f"{what}: accepted"
