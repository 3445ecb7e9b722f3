"""Code in documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


class CodeBlock(NamedTuple):
    language: str
    text: str


def code_blocks(page: Path) -> list[CodeBlock]:
    """Returns the fenced blocks of a page, in order."""
    return [CodeBlock(language, text) for _, language, text in _BLOCK.findall(page.read_text())]
