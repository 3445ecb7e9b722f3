"""Words that the glossary replaces do not come back, in code, tests, documents, logs and help."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("astha", "benchmarks", "components", "deploy", "docs", "registry", "tests")
FILES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.py", "*.md", "*.yaml", "*.yml", "*.sh", "*.toml")
    for path in (*(found for folder in FOLDERS for found in (ROOT / folder).rglob(pattern)), *ROOT.glob(pattern))
    if path != Path(__file__)
)
REPLACED = {
    "leash": "worker lease",
    "tidings": "output",
    "crew": "running jobs",
    "worklist": "queue",
    "upkeep": "maintenance",
    "chores": "maintenance",
    "debt": "refresh owed",
    "indebted": "refresh owed",
    "on paper": "acknowledged, in the ledger",
    "in doubt": "uncertain, or what is not known",
    "break-out": "circuit opening",
    "broken out": "circuit open",
    "out of breath": "time slice, yield",
    "ever more seldom": "with backoff",
    "seldom": "rarely",
    "spoilt": "invalidated",
    "doomed": "what happens to it: deleted, interrupted, crashing",
    "who gets what": "which component receives which tables",
    "nobody": "no caller, no reader, unknown",
    "somebody": "the caller, the operator, another process",
    "anybody": "any caller, any component",
    "everybody": "all components",
    "whoever": "the caller, the reader",
    "anew": "again",
    "for ever": "forever",
    "surroundings": "context",
    "concealment": "redaction",
}
ALLOWED = {
    ("registry/embedded_postgres.py", "nobody"),  # a user of Unix systems
    ("CHANGELOG.md", "upkeep"),  # a name that was replaced
    ("CHANGELOG.md", "surroundings"),  # a name that was replaced
}


_ANY = re.compile(rf"\b({'|'.join(REPLACED)})\b", re.IGNORECASE)


def _found(text: str) -> list[str]:
    return sorted({found.lower() for found in _ANY.findall(text)})


def test_the_check_finds_a_word() -> None:
    assert _found("The position is On Paper; she reads it anew.") == ["anew", "on paper"]
    assert _found("paper, newspapers, crewman") == []


def test_it_reads_code_tests_and_documents() -> None:
    shown = {str(path) for path in FILES}
    named = {"README.md", "astha/daemon.py", "docs/reference/glossary.md", "tests/conftest.py", "subscriptions.yaml"}
    assert named <= shown


def test_no_replaced_word() -> None:
    found: dict[str, list[str]] = {}
    for path in map(str, FILES):
        words = [word for word in _found((ROOT / path).read_text()) if (path, word) not in ALLOWED]
        if words:
            found[path] = words
    assert found == {}, {word: f"say: {REPLACED[word]}" for words in found.values() for word in words}
