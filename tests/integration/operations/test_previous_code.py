"""The previous version's own code, from the repository's history, across the migration that made it the previous one.

`make thorough` runs this. Migration 0009 creates `table_files` again on SQLite while a daemon of the previous version
goes on. The previous version can't be started again after the migration: the rule by which older code uses a newer
schema came with 0009 (docs/decisions/0023).
"""

from __future__ import annotations

import signal
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from registry.revisions import newest_revision
from tests.fixtures.databases import MakeDatabase
from tests.integration.astha.processes import ROOT, Astha
from tests.integration.registry.plain_sql import select
from tests.waiting import eventually_now

pytestmark = pytest.mark.long

PREVIOUS = "1d9e0b7b"  # the last revision before migration 0009
MIGRATION = "registry/migrations/versions/0009_catalog_commits.py"
COMPONENT = """
from astha.events import Event
from astha.subscribers import Component, handles
from registry.contract import ConsistentRead
from registry.models import TableFile

class Files(Component):
    durable = True

    def __init__(self, path):
        super().__init__()
        self._path = path

    @handles(TableFile)
    async def file(self, event: Event[TableFile]) -> None:
        self._write(f"{event.operation} {event.data.file_path}")

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        self._write("REFRESH")

    def _write(self, line):
        with open(self._path, "a") as file:
            file.write(line + "\\n")

def create(settings, context):
    return Files(settings["path"])
"""


@pytest.fixture(scope="module")
def previous_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    look = ["git", "cat-file", "-e", PREVIOUS]
    if subprocess.run(look, cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("the previous version's code is in the history of the repository, which is not here")
    archive = ["git", "archive", PREVIOUS, "astha", "components", "registry"]
    packed = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True).stdout
    directory = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=BytesIO(packed)) as tar:
        tar.extractall(directory, filter="data")
    assert not (directory / MIGRATION).exists()
    return directory


@pytest.fixture
def versions(new_database: MakeDatabase, previous_code: Path, tmp_path: Path) -> Iterator[tuple[Astha, Astha]]:
    """The previous version and this one, on an empty database."""
    url = new_database()
    (tmp_path / "acme_files.py").write_text(COMPONENT)
    (tmp_path / "subscriptions.yaml").write_text(
        "components:\n"
        "  files:\n"
        "    use: acme_files:create\n"
        "    tables: [table_files]\n"
        f"    settings: {{path: {tmp_path}/audit.log}}\n"
    )
    environment = {"ASTHA_LAKE__WAREHOUSE": (tmp_path / "warehouse").as_uri()}
    this = Astha(tmp_path, url, environment)
    previous = Astha(tmp_path, url, environment | {"PYTHONPATH": f"{previous_code}:{tmp_path}"})
    try:
        yield previous, this
    finally:
        for daemon in (*previous.started, *this.started):
            daemon.close()


def succeeds(astha: Astha, *arguments: str) -> str:
    done = astha(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def insert(astha: Astha, number: int) -> None:
    rows = astha.directory / "rows.json"
    rows.write_text(f'{{"id": {number}}}\n')
    succeeds(astha, "insert", "shop.orders", "--format", "json", str(rows))


def test_a_daemon_of_the_previous_version_goes_on_across_the_migration(versions: tuple[Astha, Astha]) -> None:
    previous, this = versions

    def received() -> list[str]:
        return [line for line in this.audited() if line.startswith("INSERT")]

    succeeds(previous, "registry", "migrate")
    assert select(this.url, "SELECT version_num FROM registry_version") == [("0008",)]
    succeeds(previous, "tables", "create", "shop.orders", "--column", "id:long!")
    old = previous.run()
    old.until_ready()
    for number in range(3):
        insert(previous, number)
    eventually_now(lambda: len(received()) == 3, "three files delivered", 60)
    succeeds(this, "registry", "migrate")
    assert select(this.url, "SELECT version_num FROM registry_version") == [(newest_revision(),)]
    for number in range(3, 6):
        insert(this, number)
    eventually_now(lambda: len(received()) == 6, "six files delivered", 60)
    new = this.run()
    new.logged("standing by")
    old.send(signal.SIGTERM)
    assert old.ended() == 0
    new.until_ready()
    insert(this, 6)
    eventually_now(lambda: len(received()) == 7, "seven files delivered", 60)
    paths = [str(path) for (path,) in select(this.url, "SELECT file_path FROM table_files ORDER BY id")]
    assert received() == [f"INSERT {path}" for path in paths], "each once, in order"
    others = [line for line in this.audited() if not line.startswith("INSERT")]
    assert others == ["REFRESH"], "neither the migration nor the handover costs a refresh"
