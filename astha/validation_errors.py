"""Formats pydantic's errors in one line: without the value, which may be a secret, and without links."""

from __future__ import annotations

from pydantic import ValidationError


def described(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(dict.fromkeys(_fault(fault["loc"], fault["type"], fault["msg"]) for fault in faults))


def _fault(location: tuple[int | str, ...], kind: str, message: str) -> str:
    name = ".".join(map(str, location))
    if kind == "extra_forbidden":
        return f"there is no setting {name!r}"
    message = message.removeprefix("Value error, ")
    return f"{name}: {message}" if name else message
