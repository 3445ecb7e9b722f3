"""File modes in settings: octal digits, such as "0600"."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field


def _quoted(value: object) -> object:
    if isinstance(value, int):  # YAML reads 0600 as 384, and 600 as itself
        raise ValueError('write the mode in quotes, such as "0600"')
    return value


FileMode = Annotated[str, BeforeValidator(_quoted), Field(pattern=r"^0?[67][0-7][0-7]$")]


def mode_of(text: FileMode) -> int:
    return int(text, 8)
