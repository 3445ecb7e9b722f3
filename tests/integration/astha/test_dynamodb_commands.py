"""The commands and daemons, as processes, on a registry in DynamoDB."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from astha.preflight import Verdict, preflight
from astha.settings import load_settings
from registry.connect import open_store
from registry.dynamodb_url import parse_endpoint
from registry.stores.dynamodb.client import DynamoClient
from tests.integration.astha.processes import TOKEN, Astha, Daemon, prepared
from tests.servers.dynamodb import DynamoServer
from tests.waiting import eventually_now


@pytest.fixture
def astha(dynamodb_url: str, tmp_path: Path) -> Iterator[Astha]:
    with prepared(dynamodb_url, tmp_path) as command:
        yield command


def add_topic(url: str, name: str) -> None:
    async def add() -> None:
        store = await open_store(url)
        try:
            await store.create_topic(name, 1)
        finally:
            await store.close()

    asyncio.run(add())


def audited(astha: Astha, ending: str) -> None:
    eventually_now(lambda: any(line.endswith(ending) for line in astha.audited()), f"{ending!r} in {astha.audited()}")


def said(astha: Astha, *arguments: str) -> str:
    found = astha(*arguments)
    assert found.returncode == 0, (found.stdout, found.stderr)
    return found.stdout


@pytest.mark.long
def test_migrate_run_status_and_restart(dynamodb: DynamoServer, tmp_path: Path) -> None:
    with prepared(dynamodb.url(f"commands-{tmp_path.name}"), tmp_path) as astha:
        assert astha("registry", "status").returncode == 1
        assert "migrated from nothing to items 1" in said(astha, "registry", "migrate")
        assert "has schema items 1 already" in said(astha, "registry", "migrate")
        assert json.loads(said(astha, "registry", "status", "--json"))["state"] == "current"
        checks = json.loads(said(astha, "check", "--json"))
        assert checks["ok"], checks
        daemon = astha.run()
        daemon.until_ready()
        add_topic(astha.url, "events")
        audited(astha, "INSERT events")
        status = daemon.client(TOKEN).get("/status")
        assert (status["ready"], status["leadership"]["role"]) == (True, "leading")
        daemon.send(signal.SIGTERM)
        assert daemon.ended() == 0
        add_topic(astha.url, "meanwhile")
        again = astha.run()
        again.until_ready()
        audited(astha, "INSERT meanwhile")
        assert [line.split(" ", 1)[1] for line in astha.audited()] == ["REFRESH ", "INSERT events", "INSERT meanwhile"]
        assert "dynamodb" in said(astha, "status", "--all")


@pytest.mark.long
def test_a_standby_takes_over_from_a_killed_leader(astha: Astha) -> None:
    environment = {"ASTHA_LEASE__TTL_S": "60"}  # no test waits for its end: the file lock says that the leader is dead
    leader = astha.run(environment=environment)
    leader.until_ready()
    standby = astha.run(environment=environment)
    standby.logged("listening")
    add_topic(astha.url, "before")
    audited(astha, "INSERT before")
    leader.send(signal.SIGKILL)
    leader.ended()
    add_topic(astha.url, "after")
    audited(astha, "INSERT after")
    assert audit_of(standby, astha)[-1] == "INSERT after"


def audit_of(daemon: Daemon, astha: Astha) -> list[str]:
    found = [line.split(" ", 1) for line in astha.audited()]
    return [what for pid, what in found if int(pid) == daemon.process.pid]


@pytest.mark.long
def test_copy_to_sqlite_and_back(astha: Astha, dynamodb: DynamoServer, tmp_path: Path) -> None:
    add_topic(astha.url, "events")
    file, other = f"sqlite:///{tmp_path}/copy.db", dynamodb.url(f"copied-{tmp_path.name}")
    assert json.loads(said(astha, "registry", "copy", "--json", astha.url, file))["rows"]["topics"] == 1
    copied = json.loads(said(astha, "registry", "copy", "--json", file, other))
    assert copied["rows"]["topics"] == copied["rows"]["partitions"] == 1
    assert "is not empty" in astha("registry", "copy", file, other).stderr


async def test_check(dynamodb_url: str, tmp_path: Path) -> None:
    (tmp_path / "subscriptions.yaml").write_text(
        "components: {audit: {use: 'astha.testing:RecordingSubscriber', tables: [topics]}}\n"
    )
    settings = load_settings(
        flags={
            "registry": {"url": dynamodb_url}, "server": {"port": 0},
            "subscriptions": str(tmp_path / "subscriptions.yaml"),
        }
    )  # fmt: skip
    results = {each.check: each for each in await preflight(settings) if not each.check.startswith("component")}
    assert {"table", "time to live", "permissions", "clock"} <= results.keys()
    assert [result for result in results.values() if result.verdict is not Verdict.OK] == []
    client = DynamoClient(parse_endpoint(dynamodb_url))
    off = {"Enabled": False, "AttributeName": "expires"}
    await client.call("update_time_to_live", TimeToLiveSpecification=off)
    found = {result.check: result for result in await preflight(settings)}["time to live"]
    assert (found.verdict, "grows without end" in found.detail) == (Verdict.WARNING, True)
    await client.call("delete_table")
    await client.close()
    missing = {result.check: result for result in await preflight(settings)}["schema version"]
    assert (missing.verdict, "astha registry migrate" in str(missing.remedy)) == (Verdict.PROBLEM, True)
