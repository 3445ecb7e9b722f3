"""`astha status --all`, `astha check` and `astha run --group --components`."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from astha.errors import ConfigError
from astha.preflight import PreflightResult, Verdict, preflight
from astha.settings import Settings, load_settings
from astha.wiring import selected
from registry.contract import MetadataStore
from registry.json_text import JsonText, to_json_text
from registry.models import LedgerEntry, RunningDaemon
from tests.fixtures.stores import OpenStore
from tests.integration.astha.processes import Astha, add_topic, drop_slots, prepared
from tests.waiting import eventually_now

COMPONENT = """
from astha.testing import RecordingSubscriber

def create(settings, context):
    return RecordingSubscriber("topics")
"""

GROUP = "astha"


@pytest.fixture
def command(url: str, tmp_path: Path) -> Iterator[Astha]:
    with prepared(url, tmp_path) as astha:
        yield astha
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            eventually_now(lambda: drop_slots(connection), "the slots are free")


@pytest.fixture
async def store(url: str, opened: OpenStore) -> MetadataStore:
    return await opened(url)


@pytest.fixture
def subscriptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recording_component.py").write_text(COMPONENT)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "three.yaml"
    entries = [f"  {name}: {{use: 'recording_component:create', tables: [topics]}}\n" for name in ("a", "b", "c")]
    path.write_text("components:\n" + "".join(entries))
    return path


def settings_of(url: str, subscriptions: Path, components: str | None = None, group: str = GROUP) -> Settings:
    flags = {"registry": {"url": url}, "subscriptions": str(subscriptions), "server": {"port": 0}, "group": group}
    return load_settings(flags={**flags, "daemon": {} if components is None else {"components": components}})


def daemon_row(holder: str, group: str, *components: str, ago_s: float = -600.0, role: str = "leader") -> RunningDaemon:
    now = time.time_ns() // 1_000_000
    listed = to_json_text(list(components))
    return RunningDaemon(holder, group, "host-1", 42, role, "kafka", listed, "0.1", now, now - int(ago_s * 1000))  # type: ignore[arg-type]


async def write_entries(store: MetadataStore, group: str, **positions: int | None) -> None:
    lease = await store.take_daemon_lease(group, "test", 60_000)
    assert lease is not None
    entries = [
        LedgerEntry(name, position, None, JsonText("[]"), "live" if position else "broken", position is None,
                    None if position else "the catalog\nis full", 1_700_000_000_000, group)
        for name, position in positions.items()
    ]  # fmt: skip
    await store.write_ledger(entries, lease)


async def group_results(settings: Settings) -> dict[str, PreflightResult]:
    results = await preflight(settings)
    return {result.check: result for result in results if result.check.startswith(("component ", "groups", "change"))}


async def test_status_without_any_daemon(command: Astha) -> None:
    shown = command("status", "--all")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "no daemon runs on" in shown.stdout
    assert json.loads(command("status", "--all", "--json").stdout)["groups"] == []


async def test_status_of_all_groups_from_the_registry_alone(command: Astha, store: MetadataStore) -> None:
    await store.record_daemon(daemon_row("one", GROUP, "a"))
    await store.record_daemon(daemon_row("two", "reports", "b", ago_s=95))
    await store.record_daemon(daemon_row("three", "reports", "b", role="standby"))
    await write_entries(store, GROUP, a=2**62)
    await write_entries(store, "reports", b=2**62 - 1_500, c=None)
    await write_entries(store, "stopped", d=7)
    found = json.loads(command("status", "--all", "--json").stdout)
    groups = {group["name"]: group for group in found["groups"]}
    assert list(groups) == [GROUP, "reports", "stopped"]
    daemons = {daemon["holder"]: daemon for group in found["groups"] for daemon in group["daemons"]}
    assert {holder: daemon["gone"] for holder, daemon in daemons.items()} == {"one": False, "two": True, "three": False}
    assert daemons["two"]["seen_s"] >= 95
    assert (daemons["one"]["role"], daemons["one"]["source"], daemons["one"]["components"]) == (
        "leader",
        "kafka",
        ["a"],
    )
    components = {part["name"]: part for group in found["groups"] for part in group["components"]}
    assert [components[name]["lag"] for name in ("a", "b", "c")] == [0, 1_500, None]
    assert {name for name, part in components.items() if part["running"]} == {"a", "b"}
    assert (components["c"]["state"], components["c"]["refresh_owed"]) == ("broken", True)

    shown = command("status", "--all")
    assert shown.returncode == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["group", "reports"] in lines
    assert any(line[:4] == ["leader", "host-1", "42", "kafka"] for line in lines)
    assert any(line[:1] == ["gone"] and "as leader" in " ".join(line) for line in lines)
    assert any(line[:3] == ["b", "live", "1,500"] for line in lines)
    broken = ["c", "not", "running,", "was", "broken,", "owes", "a", "refresh"]
    assert any(line[:8] == broken and line[-4:] == ["the", "catalog", "is", "full"] for line in lines)
    assert ["no", "daemon", "runs"] in lines


async def test_check_names_components_in_no_group_and_in_two(
    url: str, store: MetadataStore, subscriptions: Path
) -> None:
    results = await group_results(settings_of(url, subscriptions))
    assert results["groups"].detail == "astha runs a, b, c"
    results = await group_results(settings_of(url, subscriptions, "b,a"))
    assert set(results) == {"component c"}
    assert results["component c"].verdict is Verdict.WARNING
    assert "is in no group" in results["component c"].detail

    await write_entries(store, "reports", c=1)
    results = await group_results(settings_of(url, subscriptions, "a,b"))
    assert set(results) == {"groups"}, "another group has it in its ledger"

    await store.record_daemon(daemon_row("one", "reports", "c", "b"))
    results = await group_results(settings_of(url, subscriptions, "a,b"))
    assert set(results) == {"component b"}
    assert results["component b"].verdict is Verdict.PROBLEM
    assert "is in the groups astha and reports at once" in results["component b"].detail
    assert (await group_results(settings_of(url, subscriptions, "b,c", "reports")))["component a"].verdict == "warning"

    await store.record_daemon(daemon_row("one", "reports", "c"))
    await store.record_daemon(daemon_row("two", "old", "a", ago_s=31))
    results = await group_results(settings_of(url, subscriptions, "a,b"))
    assert results["groups"].detail == "astha runs a, b; reports runs c", "a daemon that is gone runs nothing"


async def test_an_unknown_component_is_an_error_that_names_the_known_ones(
    url: str, store: MetadataStore, subscriptions: Path
) -> None:
    settings = settings_of(url, subscriptions, "a, nix")
    results = {result.check: result for result in await preflight(settings)}
    assert results["subscriptions"].verdict is Verdict.PROBLEM
    assert "has no component 'nix'; it has a, b, c" in results["subscriptions"].detail
    with pytest.raises(ConfigError, match=r"nix.*it has none"):
        selected({}, settings)
    with pytest.raises(ConfigError, match=r"daemon.components"):
        settings_of(url, subscriptions, ",")


async def test_check_finds_another_reader_of_the_change_log(
    sqlite_url: str, opened: OpenStore, subscriptions: Path
) -> None:
    store = await opened(sqlite_url)
    await store.take_daemon_lease("change log", "reports", 20 * 365 * 86_400_000)  # the store's clock is in the past
    results = await group_results(settings_of(sqlite_url, subscriptions))
    assert results["change log"].verdict is Verdict.PROBLEM
    assert "kafka://" in results["change log"].detail
    assert "change log" not in await group_results(settings_of(sqlite_url, subscriptions, group="reports"))


def _entries(subscriptions: Path, tmp_path: Path) -> None:
    audit = "use: acme_audit:create, tables: [topics]"
    subscriptions.write_text(
        "components:\n"
        f"  audit: {{{audit}, settings: {{path: {tmp_path}/audit.log}}}}\n"
        f"  second: {{{audit}, settings: {{path: {tmp_path}/second.log}}}}\n"
    )


@pytest.mark.slow
def test_two_groups_as_processes(postgres_url: str, tmp_path: Path) -> None:
    """One subscriptions file, a part of it in each group; each has its own slot."""
    with prepared(postgres_url, tmp_path) as astha:
        _entries(tmp_path / "subscriptions.yaml", tmp_path)
        one = astha.run("--components", "audit")
        two = astha.run("--group", "reports", "--components", "second")
        one.until_ready()
        two.until_ready()
        add_topic(postgres_url, "events")
        for name in ("audit", "second"):
            log = tmp_path / f"{name}.log"
            eventually_now(lambda log=log: "INSERT events" in log.read_text(), f"the event at {name}")  # type: ignore[misc]

        def groups() -> dict[str, tuple[list[str], list[str]]]:
            found = json.loads(astha("status", "--all", "--json").stdout)["groups"]
            return {
                group["name"]: ([d["role"] for d in group["daemons"]], [c["name"] for c in group["components"]])
                for group in found
            }

        wanted = {"astha": (["leader"], ["audit"]), "reports": (["leader"], ["second"])}
        eventually_now(lambda: groups() == wanted, "both groups in status --all")
        checked = astha("check", "--components", "audit,second")
        assert checked.returncode == 1
        assert "is in the groups astha and reports at once" in checked.stdout
        checked = astha("check", "--components", "audit")
        assert "astha runs audit; reports runs second" in checked.stdout
        with psycopg.connect(postgres_url) as connection:
            query = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() ORDER BY 1"
            assert connection.execute(query).fetchall() == [("astha",), ("astha_reports",)]
        two.send(signal.SIGTERM)
        assert two.ended() == 0
        eventually_now(lambda: groups() == {**wanted, "reports": ([], ["second"])}, "one daemon less")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        eventually_now(lambda: drop_slots(connection), "the slots are free")


@pytest.mark.slow
def test_a_second_group_on_a_sqlite_registry_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    with prepared(sqlite_url, tmp_path) as astha:
        one = astha.run()
        one.until_ready()
        two = astha.run("--group", "reports")
        assert two.ended() == 2
        assert "the daemons of group 'astha' read the change log" in two.lines[-1]["event"]
        standby = astha.run()
        standby.logged("another daemon leads")
        add_topic(sqlite_url, "events")
        eventually_now(lambda: any("INSERT events" in line for line in astha.audited()), "the event")
        one.process.kill()
        standby.until_ready()
        standby.send(signal.SIGTERM)
        assert standby.ended() == 0
        three = astha.run("--group", "reports")
        three.until_ready()
