"""Records the SQL that the stores send while the contract suite runs; `make statements` before a new revision.

The record is for `test_compatibility`, which plans the statements of one version on the schema of the next.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event

from registry.revisions import newest_revision
from registry.schema import metadata

DIRECTORY = Path(__file__).parent / "statements"
CONTRACTS = Path(__file__).parents[2] / "contracts"

_VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")


class Recorder:
    """A plugin of pytest. Statements that differ only in the number of repeated values are recorded once."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = {"postgresql": set(), "sqlite": set()}
        event.listen(Engine, "before_cursor_execute", self._record)

    def _record(
        self, connection: Connection, cursor: object, statement: str, parameters: object, context: object, many: bool
    ) -> None:
        dialect = connection.dialect
        text = " ".join(re.sub(r"--[^\n]*", "", statement).split())
        if not dialect.is_async:  # migrations
            return
        if text.startswith(_VERBS) and len(text) < 4_000 and any(table in text for table in metadata.tables):
            self.found[dialect.name].add(text)


def recorded(revision: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads((DIRECTORY / f"{revision}.json").read_text())
    return found


def main() -> int:
    recorder = Recorder()
    code = pytest.main(["-q", "-p", "no:cacheprovider", str(CONTRACTS)], plugins=[recorder])
    if code == 0:
        DIRECTORY.mkdir(exist_ok=True)
        text = json.dumps({dialect: sorted(found) for dialect, found in recorder.found.items()}, indent=0)
        (DIRECTORY / f"{newest_revision()}.json").write_text(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
