"""`astha snapshot` with a daemon in a process of its own."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.astha.processes import Astha, postgres_registry
from tests.waiting import eventually_now

__all__ = ["postgres_registry"]  # fixture

pytestmark = pytest.mark.slow

SUBSCRIPTIONS = """
components:
  iceberg_updater:
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
  snapshotter:
    tables: [table_metadata, table_files, table_snapshots]
    settings: {check_every_s: 0.2, maintenance_every_s: 0.5, defaults: {snapshot.grace: 0s}}
"""


@pytest.fixture
def astha(request: pytest.FixtureRequest, backend: str, tmp_path: Path) -> Iterator[Astha]:
    url = request.getfixturevalue("sqlite_url" if backend == "sqlite" else "postgres_registry")
    (tmp_path / "subscriptions.yaml").write_text(SUBSCRIPTIONS)
    environment = {"ASTHA_LEASE__TTL_S": "2", "ASTHA_LAKE__WAREHOUSE": str(tmp_path / "warehouse")}
    command = Astha(tmp_path, url, environment)
    yield command
    for daemon in command.started:
        daemon.close()


def done(astha: Astha, *arguments: str, code: int = 0) -> Any:
    answer = astha(*arguments, "--json")
    assert answer.returncode == code, answer.stderr + answer.stdout
    return json.loads(answer.stdout) if answer.stdout.strip() else None


def insert(astha: Astha, *ids: int) -> None:
    path = astha.directory / "rows.json"
    path.write_text("".join(json.dumps({"id": number}) + "\n" for number in ids))
    done(astha, "insert", "shop.orders", str(path), "--format", "json")


def tags(astha: Astha) -> dict[str, str]:
    return {row["tag"]: row["status"] for row in done(astha, "snapshot", "list", "shop.orders", "--all")}


def rows_at(astha: Astha, tag: str) -> int:
    (row,) = (row for row in done(astha, "snapshot", "list", "shop.orders") if row["tag"] == tag)
    return int(row["summary"]["total-records"])


@pytest.mark.parametrize("backend", [pytest.param("sqlite", marks=pytest.mark.long), "postgres"], indirect=True)
def test_from_request_to_rollback(astha: Astha) -> None:
    done(astha, "tables", "create", "shop.orders", "--column", "id:long!")
    insert(astha, 1, 2)
    refused = astha("snapshot", "create", "shop.orders", "--tag", "early")
    assert refused.returncode == 3
    assert "no daemon runs" in refused.stderr
    daemon = astha.run()
    daemon.until_ready()
    eventually_now(lambda: tags(astha) == {"early": "created"}, "the request from before the daemon's start")
    insert(astha, 3)
    made = done(astha, "snapshot", "create", "shop.orders", "--tag", "v2")
    assert (made["status"], made["summary"]["total-records"]) == ("created", "3")
    assert astha("snapshot", "create", "shop.orders", "--tag", "v2").returncode == 1

    insert(astha, 4, 5)
    done(astha, "snapshot", "create", "shop.orders", "--tag", "v3", "--no-wait")
    daemon.send(signal.SIGKILL)
    daemon.ended()
    daemon = astha.run()
    daemon.until_ready()
    eventually_now(lambda: tags(astha).get("v3") == "created", "the request that the kill interrupted")
    assert rows_at(astha, "v3") == 5

    asked = astha("snapshot", "rollback", "shop.orders", "v2")
    assert asked.returncode == 2
    assert "Repeat with --yes" in asked.stderr
    back = done(astha, "snapshot", "rollback", "shop.orders", "v2", "--yes")
    assert (back["changed"], back["removed"], back["restored"], back["rows"]) == (True, 1, 0, -2)
    eventually_now(lambda: astha("verify", "shop.orders").returncode == 0, "Iceberg after the rollback")
    done(astha, "snapshot", "rollback", "shop.orders", "v3", "--yes")
    assert astha("snapshot", "rollback", "shop.orders", "v9", "--yes").returncode == 1

    done(astha, "tables", "alter", "shop.orders", "--property", "snapshot.after-rows=2")
    insert(astha, 6, 7)
    eventually_now(lambda: len(tags(astha)) == 4, "a snapshot by size")

    planned = done(astha, "snapshot", "expire", "shop.orders", "--tag", "early", "--dry-run")
    assert [decision["name"] for decision in planned["tables"][0]["decisions"] if decision["remove"]] == ["early"]
    assert tags(astha)["early"] == "created"
    done(astha, "snapshot", "expire", "shop.orders", "--tag", "early")
    assert tags(astha)["early"] == "expired"
    assert astha("snapshot", "expire", "shop.orders", "--tag", "early").returncode == 1
    shown = astha("snapshot", "clean", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    eventually_now(lambda: astha("verify", "shop.orders", "--files").returncode == 0, "all sides agree")
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 0
    ours = [line for line in daemon.lines if "snapshotter" in line.get("logger", "")]
    assert not [line for line in ours if line.get("level") in ("error", "warning")], ours
