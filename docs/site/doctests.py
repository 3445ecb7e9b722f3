"""Shows the examples in docstrings as code: Markdown takes `>>>` for quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Encloses each example, up to the next empty line, in a block of code."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
