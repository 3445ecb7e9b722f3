"""The revisions of the schema that this code knows, without alembic: that takes a tenth of a second to import, and only
migrations need it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

MIGRATIONS = Path(__file__).parent / "migrations"

_DECLARED = re.compile(r'^(revision|down_revision) = (?:"(\w+)"|None)$', re.MULTILINE)


def known_revisions() -> tuple[str, ...]:
    """Returns them oldest first."""
    return _revisions_in(MIGRATIONS)


def newest_revision() -> str:
    """Returns the revision that this code expects."""
    return known_revisions()[-1]


@cache
def _revisions_in(directory: Path) -> tuple[str, ...]:
    declared = [dict(_DECLARED.findall(path.read_text())) for path in (directory / "versions").glob("*.py")]
    following = {each["down_revision"]: each["revision"] for each in declared}  # of the first one, "" goes before it
    revisions, last = list[str](), ""
    while last in following:
        last = following[last]
        revisions.append(last)
    return tuple(revisions)
