from __future__ import annotations

from registry.migrate import _scripts
from registry.revisions import known_revisions, newest_revision


def test_revisions_are_those_of_alembic() -> None:
    scripts = _scripts()
    assert list(known_revisions()) == [script.revision for script in scripts.walk_revisions()][::-1]
    assert newest_revision() == scripts.get_current_head()
