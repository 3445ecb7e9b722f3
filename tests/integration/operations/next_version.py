"""The next version of Astha, simulated: this code with further migrations.

In a test's own process: `next_version`. As a process: ``python -m tests.integration.operations.next_version DIRECTORY
run``, where the directory has been made by `with_revisions`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from astha.cli.root import main
from registry import revisions

HEADER = """
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{down_revision}"
{compatible_from}
branch_labels = None
depends_on = None
"""

EXPANDING = """
def upgrade():
    op.add_column("topics", sa.Column("owner", sa.Text, nullable=True))
    op.add_column("table_files", sa.Column("note", sa.Text, nullable=False, server_default="none"))
    op.add_column("ledger", sa.Column("lag", sa.Integer, nullable=False, server_default="0"))
    op.create_table("owners", sa.Column("name", sa.Text, primary_key=True))
    op.create_index("ix_topics_owner", "topics", ["owner"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER PUBLICATION astha ADD TABLE owners")
        return
    from registry.change_log import create_triggers, drop_triggers
    from registry.models import Topic

    for statement in (*drop_triggers("topics"), *create_triggers("topics", [*Topic.__struct_fields__, "owner"]),
                      *create_triggers("owners", ["name"])):
        op.execute(statement)


def downgrade():
    pass
"""
"""A migration as the next version's should be: it only adds, on published tables and on the daemon's own."""

NOTHING = "def upgrade():\n    pass\n\n\ndef downgrade():\n    pass\n"


def with_revisions(directory: Path, further: Mapping[str, tuple[str | None, str]]) -> Path:
    """Returns a copy of the migrations with further ones: revision -> what it is compatible from, and its code."""
    scripts = Path(shutil.copytree(revisions.MIGRATIONS, directory, ignore=shutil.ignore_patterns("__pycache__")))
    previous = revisions.newest_revision()
    for revision, (compatible_from, code) in further.items():
        declared = "" if compatible_from is None else f'compatible_from = "{compatible_from}"'
        header = HEADER.format(revision=revision, down_revision=previous, compatible_from=declared)
        (scripts / "versions" / f"{revision}_simulated.py").write_text(header + "\n" + code)
        previous = revision
    return scripts


@contextmanager
def next_version(scripts: Path) -> Iterator[None]:
    """Within the block, this process is the next version."""
    with mock.patch.object(revisions, "MIGRATIONS", scripts):
        yield


if __name__ == "__main__":
    with next_version(Path(sys.argv.pop(1))):
        main()
