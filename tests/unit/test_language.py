"""Words that the glossary replaces do not come back, in code, documents, logs and help."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path.relative_to(ROOT)
    for folder in ("astha", "components", "registry", "docs")
    for pattern in ("*.py", "*.md")
    for path in (ROOT / folder).rglob(pattern)
)
REPLACED = {
    "leash": "worker lease",
    "tidings": "output",
    "crew": "running jobs",
    "upkeep": "maintenance",
    "chores": "maintenance",
    "indebted": "refresh owed",
    "on paper": "acknowledged, in the ledger",
    "out of breath": "time slice, yield",
    "somebody": "the caller, the operator, another process",
    "everybody": "all components",
    "whoever": "the caller, the reader",
    "anew": "again",
    "surroundings": "context",
    "concealment": "redaction",
}


def _found(text: str) -> list[str]:
    return [word for word in REPLACED if re.search(rf"\b{word}\b", text, re.IGNORECASE)]


def test_the_check_finds_a_word() -> None:
    assert _found("The debt is On Paper; nobody reads it anew.") == ["on paper", "anew"]


def test_no_replaced_word() -> None:
    found = {str(path): words for path in FILES if (words := _found((ROOT / path).read_text()))}
    assert found == {}, {word: f"say: {REPLACED[word]}" for words in found.values() for word in words}
