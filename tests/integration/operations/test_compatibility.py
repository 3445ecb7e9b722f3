"""Every revision after the baseline is compatible with its predecessor: it only adds.

So the previous version runs on the schema of the next one (docs/decisions/0023-schema-compatibility.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.migrate import _scripts, migrate
from tests.fixtures.databases import MakeDatabase
from tests.integration.operations.compatibility import incompatibilities, shapes, unplannable
from tests.integration.operations.next_version import EXPANDING, next_version, with_revisions
from tests.integration.operations.record_statements import DIRECTORY, recorded

BASELINE = "0008"
"""The last revision for which the rule does not hold: nothing was released before it."""

REVISIONS = [script for script in reversed(list(_scripts().walk_revisions())) if script.revision > BASELINE]
HEAD = REVISIONS[-1].revision if REVISIONS else BASELINE

BAD = {
    "column was": "def upgrade():\n    op.execute('ALTER TABLE ledger RENAME COLUMN reason TO why')\n",
    "was dropped": "def upgrade():\n    op.drop_table('daemons')\n",
    "column": "def upgrade():\n    op.drop_column('ledger', 'updated_at')\n",
    "unique": "def upgrade():\n    op.create_index('one', 'topics', ['partition_count'], unique=True)\n",
    "checks": (
        "def upgrade():\n"
        "    op.drop_constraint(op.f('ck_tables_status'), 'tables', type_='check')\n"
        "    op.create_check_constraint('status', 'tables', \"status IN ('active', 'gone')\")\n"
    ),
    "NOT NULL": "def upgrade():\n    op.add_column('daemons', sa.Column('zone', sa.Text, nullable=False))\n",
}
CASES = [("postgres" if problem in ("NOT NULL", "checks") else "sqlite", problem) for problem in BAD]
"""SQLite adds no such column itself, and changes no check."""


def dialect(url: str) -> str:
    return url.split(":", maxsplit=1)[0]


def test_every_revision_only_adds(new_database: MakeDatabase) -> None:
    url = new_database()
    migrate(url, revision=BASELINE)
    for script in REVISIONS:
        before, previous = shapes(url), str(script.down_revision)
        migrate(url, revision=script.revision)
        named = getattr(script.module, "compatible_from", script.revision)
        assert named <= previous, f"{script.revision}: say `compatible_from`, at most {previous}"
        assert incompatibilities(before, shapes(url)) == []
        record = DIRECTORY / f"{previous}.json"
        assert record.exists(), f"record the statements of {previous} with its code: see docs/decisions/0023"
        assert unplannable(url, recorded(previous)[dialect(url)]) == []


def test_the_statements_of_this_version_are_planned_on_the_next_schema(url: str, tmp_path: Path) -> None:
    statements = recorded(HEAD)[dialect(url)]
    assert len(statements) > 100
    assert unplannable(url, statements) == []
    before = shapes(url)
    with next_version(with_revisions(tmp_path / "next", {"next": (HEAD, EXPANDING)})):
        migrate(url)
    assert incompatibilities(before, shapes(url)) == []
    assert unplannable(url, statements) == []


@pytest.mark.parametrize(("backend", "problem"), CASES, indirect=["backend"])
def test_a_revision_that_takes_something_away_is_noticed(url: str, tmp_path: Path, problem: str) -> None:
    before = shapes(url)
    code = BAD[problem] + "\n\ndef downgrade():\n    pass\n"
    with next_version(with_revisions(tmp_path / "next", {"next": (None, code)})):
        migrate(url)
    found = incompatibilities(before, shapes(url))
    assert any(problem.split()[-1] in each for each in found), found
    if "dropped" in problem or problem.startswith("column"):
        concerned = [text for text in recorded(HEAD)[dialect(url)] if "ledger" in text or "daemons" in text]
        assert unplannable(url, concerned), "its statements can't be planned"
