"""Settings of a component in a table's properties: under one prefix, with sizes and durations as users write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from astha.errors import AsthaError
from astha.quantities import parse_duration_ms, parse_size
from registry.json_text import JsonValue

DAY_MS = 86_400_000

_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

Reader: TypeAlias = Callable[[str, str], object]
"""Takes a property's name, for messages, and its text. Raises `PolicyProblem` if the text cannot be read."""


class PolicyProblem(AsthaError):
    """A property that cannot be read. The message names it and a valid value."""


def read_properties(properties: JsonValue, prefix: str, known: Mapping[str, tuple[str, Reader]]) -> dict[str, object]:
    """Returns values by field, of the properties under the prefix. Raises `PolicyProblem` for an unknown or unreadable
    one. An empty one means the default.
    """
    found: dict[str, object] = {}
    for name, value in (properties if isinstance(properties, Mapping) else {}).items():
        if name.startswith(prefix) and value not in (None, ""):
            reader = known.get(name.removeprefix(prefix))
            if reader is None:
                raise PolicyProblem(
                    f"{name}: there is no such property; known are {', '.join(map(prefix.__add__, known))}"
                )
            field, read = reader
            found[field] = read(name, str(value).strip())
    return found


def duration_ms(name: str, text: str) -> int:
    found = parse_duration_ms(text)
    if found is None:
        raise PolicyProblem(f"{name} = {text!r}: write a duration such as 30m, 12h, 7d")
    return found


def positive_duration_ms(name: str, text: str) -> int:
    found = duration_ms(name, text)
    if found == 0:
        raise PolicyProblem(f"{name} = {text!r}: must be longer than 0")
    return found


def size_bytes(name: str, text: str) -> int:
    found = parse_size(text)
    if not found:
        raise PolicyProblem(f"{name} = {text!r}: write a size such as 500MB, 10GiB")
    return found


def count(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise PolicyProblem(f"{name} = {text!r}: write a number of 1 or more")
    return int(text)


def flag(name: str, text: str) -> bool:
    found = _FLAGS.get(text.lower())
    if found is None:
        raise PolicyProblem(f"{name} = {text!r}: write true or false")
    return found


def patterns(_name: str, text: str) -> tuple[str, ...]:
    return tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())
