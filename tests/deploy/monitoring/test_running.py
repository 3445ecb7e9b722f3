"""Rules and dashboards against real daemons, a real Prometheus and a real node_exporter."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from components.lib.lake.schema.table_definition import parse_definition
from components.lib.lake.storage.locations import table_location
from components.lib.storage_manager import StorageManager
from registry.connect import open_store
from registry.embedded_postgres import EmbeddedPostgres, free_port
from tests.deploy.monitoring.dashboards import metrics_of, name_patterns_of, queries
from tests.deploy.monitoring.rules_files import ROOT, RULES, expressions, recorded
from tests.fixtures.databases import database
from tests.integration.astha.processes import Astha, Daemon, add_topic, drop_slots
from tests.lake import environment_of
from tests.servers.kafka import KafkaBroker
from tests.servers.mosquitto import Mosquitto
from tests.servers.prometheus import NodeExporter, Prometheus, fetch
from tests.waiting import eventually_now

pytestmark = pytest.mark.slow

IN_CERTAIN_STATES = {
    "astha_iceberg_updater_table_stopped": "labelled by table; only for a table that waits for an operator",
    "astha_iceberg_updater_table_attempts": "labelled by table; only for a table whose update is retried",
    "astha_compactor_seconds_total": "labelled by phase; the phases are known once a merge has ended",
    "astha_compactor_progress": "labelled by table and partition; only while a job runs",
    "astha_compactor_decisions_total": "labelled by rule; only for rules that have decided something",
    "astha_compactor_memory_bytes": "labelled by process; only while there is a Spark session",
    "astha_compactor_left_out_files": "labelled by table; only for a table with files that can't be read",
    "astha_compactor_budget_bytes": "only if an hourly limit is set",
}
"""Metrics that rules and dashboards name, and that a scrape need not have: a zero would need labels without meaning."""

WITHOUT_DATA = {"daemon: Disks"}
"""Panels that may be empty: a container may have no file system but overlays and those in memory, which don't count."""

SUBSCRIPTIONS = """
components:
  iceberg_updater:
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
    lane: {{health_timeout_s: 30}}
  snapshotter: {{tables: [table_metadata, table_files, table_snapshots]}}
  metadata_orchestrator: {{tables: [tables, table_metadata]}}
  segment_store:
    tables: [topics, partitions, segments, partition_leases]
    settings: {{lag_every_s: 0.5}}
  compactor: {{tables: [table_files, table_stats, table_delete_files]}}
  kafka_sink:
    tables: [topics, partitions, segments, partition_leases, tables]
    lane: {{health_timeout_s: 30}}
    settings: {{bootstrap_servers: "{kafka}", layout: transactions, prefix: {prefix}}}
  mqtt_sink:
    tables: [topics]
    lane: {{health_timeout_s: 30}}
    settings: {{url: "{mqtt}", prefix: {prefix}}}
"""
SEGMENT_STORE = """
components:
  segment_store: {tables: [topics, partitions, segments, partition_leases]}
"""


@dataclass
class Site:
    url: str
    prometheus: Prometheus
    scrapes: dict[str, str]  # what each target exposes
    numbers: Iterator[int]
    catalog: str  # its address

    def write(self) -> None:
        """Commits a change, so that there are deliveries to measure, and asks the catalog for a commit."""
        add_topic(self.url, f"written-{next(self.numbers)}")
        commit_to_missing_table(self.catalog)


def commit_to_missing_table(address: str) -> None:
    """The catalog refuses it, and counts it as a commit."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        body = json.dumps({"requirements": [], "updates": []})
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/namespaces/shop/tables/missing", body, headers)
        assert connection.getresponse().status == 404
    finally:
        connection.close()


@pytest.fixture(scope="module")
def site(
    postgres: EmbeddedPostgres,
    postgres_template: str,
    sqlite_template: Path,
    kafka: KafkaBroker,
    mosquitto: Mosquitto,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """A leader with every component, its standby, a follower over Kafka, a daemon on SQLite, a catalog; all scraped."""
    directory = tmp_path_factory.mktemp("monitored")
    lake = LakeSettings(warehouse=(directory / "warehouse").as_uri())
    with ExitStack() as stack:
        url = stack.enter_context(database(postgres, postgres_template))
        stack.callback(_drop_slots, url)
        text = SUBSCRIPTIONS.format(kafka=kafka.address, mqtt=mosquitto.url, prefix="monitored")
        asyncio.run(_fill(url, lake))
        follows = {"ASTHA_GROUP": "heavy", "ASTHA_SOURCE__URL": f"kafka://{kafka.address}/monitored.transactions"}
        sqlite = directory / "registry.db"
        sqlite.write_bytes(sqlite_template.read_bytes())
        add_topic(f"sqlite:///{sqlite}", "first")  # a component that has seen no change has no position, and no lag
        leading = _command(stack, directory / "leader", url, text, environment_of(lake))
        following = _command(stack, directory / "follower", url, SEGMENT_STORE, environment_of(lake) | follows)
        small = _command(stack, directory / "sqlite", f"sqlite:///{sqlite}", SEGMENT_STORE, environment_of(lake))
        leader, alone = leading.run(), small.run()
        leader.until_ready()  # before the standby starts, and before the follower looks for the topic
        standby, follower = leading.run(), following.run()
        verified = leading("verify", "--metrics", str(directory / "verify.prom"))
        assert verified.returncode == 0, verified.stdout + verified.stderr
        follower.until_ready()
        alone.until_ready()
        node = stack.enter_context(NodeExporter(directory))
        targets = {each: urlsplit(daemon.url).netloc for each, daemon in
                   {"leader": leader, "standby": standby, "follower": follower, "sqlite": alone}.items()}  # fmt: skip
        catalog = _catalog(stack, leading)
        jobs = {
            "catalog": [catalog],
            "astha": [targets["leader"], targets["standby"], targets["follower"]],
            "small": [targets["sqlite"]],
            "node": [node.address],
        }
        numbers = itertools.count(1)
        scrapes = {each: _scrape_with(address, url, numbers) for each, address in targets.items()}
        commit_to_missing_table(catalog)
        scrapes["catalog"] = fetch(catalog, "/metrics")
        scrapes["node"] = fetch(node.address, "/metrics")
        prometheus = stack.enter_context(Prometheus(directory, jobs, RULES))
        yield Site(url, prometheus, scrapes, numbers, catalog)


def _command(stack: ExitStack, directory: Path, url: str, subscriptions: str, environment: dict[str, str]) -> Astha:
    directory.mkdir()
    (directory / "subscriptions.yaml").write_text(subscriptions)
    quick = {"ASTHA_SOURCE__SLOT_CHECK_INTERVAL_S": "0.5"} if url.startswith("postgres") else {}
    command = Astha(directory, url, {**environment, **quick})
    stack.callback(_close, command.started)
    return command


def _catalog(stack: ExitStack, command: Astha) -> str:
    """Starts a catalog of the same registry and lake, and returns its address."""
    address = f"127.0.0.1:{free_port()}"
    environment = {**command.environment, "ASTHA_CATALOG__PORT": address.rpartition(":")[2]}
    process = subprocess.Popen([*command.program, "catalog"], env=environment, cwd=command.directory)
    stack.callback(process.wait)
    stack.callback(process.kill)

    def responds() -> bool:
        with suppress(OSError, AssertionError):
            return "true" in fetch(address, "/readyz")
        return False

    eventually_now(responds, "the catalog is ready", 60.0)
    return address


def _close(daemons: list[Daemon]) -> None:
    for daemon in daemons:
        daemon.close()


def _drop_slots(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        eventually_now(lambda: drop_slots(connection), "the slot is free")


async def _fill(url: str, lake: LakeSettings) -> None:
    """A table with a file, a topic with an agent, and a consumer group that is behind."""
    store = await open_store(url)
    try:
        schema = parse_definition({"columns": {"id": "long!"}}).schema()
        await store.create_table("shop", "orders", table_location(lake.warehouse, "shop", "orders"), schema.draft())
        async with StorageManager(ComponentContext(store, SystemLoopClock(), SecretStr(url), lake)) as manager:
            await manager.insert("shop.orders", pa.table({"id": pa.array(range(5), pa.int64())}))
        await store.create_topic("orders", 2)
        await store.register_agent("agent-1", "local")
        await store.acquire_partition_lease("orders", 0, "agent-1", 600_000)
        await store.ensure_consumer_group("readers")
        await store.commit_offset("readers", "orders", 0, 0)
    finally:
        await store.close()


def _scrape_with(address: str, url: str, numbers: Iterator[int]) -> str:
    """The slot and the lag of consumers are measured now and then: waits until both were, on a leader of PostgreSQL."""
    add_topic(url, f"before-{next(numbers)}")
    texts = [fetch(address, "/metrics")]

    def measured() -> bool:
        texts.append(fetch(address, "/metrics"))
        leads, reads_wal = "astha_leading 1.0" in texts[-1], 'source="postgresql"' in texts[-1]
        wanted = ("astha_source_wal_status", "astha_segment_store_consumer_lag_records", "astha_component_events_total")
        return not (leads and reads_wal) or all(name in texts[-1] for name in wanted)

    eventually_now(measured, "a complete scrape", 60.0)
    return texts[-1]


def exposed(texts: list[str]) -> set[str]:
    families = (family for text in texts for family in text_string_to_metric_families(text))
    return {sample.name for family in families for sample in family.samples}


def test_every_metric_of_rules_and_dashboards_exists(site: Site) -> None:
    existing = exposed(list(site.scrapes.values())) | recorded() | {"up"}
    everything = [*expressions(), *(expression for _, expression in queries())]
    named = {name for expression in everything for name in metrics_of(expression)}
    assert named - existing - IN_CERTAIN_STATES.keys() == set()
    for pattern in {pattern for expression in everything for pattern in name_patterns_of(expression)}:
        assert any(re.fullmatch(pattern, name) for name in existing), pattern


@pytest.mark.parametrize("name", sorted(IN_CERTAIN_STATES))
def test_metrics_of_certain_states_are_those_of_a_component(name: str) -> None:
    component, own = re.fullmatch(r"astha_(iceberg_updater|compactor)_(\w+?)(?:_total)?", name).groups()  # type: ignore[union-attr]
    source = "".join(path.read_text() for path in (ROOT / "components" / component).glob("*.py"))
    assert re.search(rf'Metric\(\s*"{own}"', source), f"{component} reports no {own}"


def test_a_standby_says_to_which_group_it_belongs(site: Site) -> None:
    assert 'astha_daemon_info{group="astha",source="postgresql"} 1.0' in site.scrapes["standby"]
    assert 'astha_daemon_info{group="heavy",source="kafka"} 1.0' in site.scrapes["follower"]
    assert 'astha_daemon_info{group="astha",source="sqlite"} 1.0' in site.scrapes["sqlite"]


def test_prometheus_evaluates_the_rules_and_every_panel_has_data(site: Site) -> None:
    """No alert fires at a healthy site; those about disks are about this machine."""
    prometheus = site.prometheus
    empty = [
        (panel, expression)
        for panel, expression in queries()
        if panel not in WITHOUT_DATA and not metrics_of(expression) & IN_CERTAIN_STATES.keys()
    ]

    def all_have_data() -> bool:
        site.write()
        empty[:] = [each for each in empty if not prometheus.query(each[1])]
        return not empty

    try:
        eventually_now(all_have_data, "data in every panel", 90.0)
    except AssertionError:
        assert empty == []
        raise
    for _, expression in queries():
        prometheus.query(expression)  # fails if Prometheus refuses it
    found = {tuple(sorted(each["metric"].items())): each["value"][1] for each in
             prometheus.query('sum by (job, group) ({__name__="group:astha_leading:sum"})')}  # fmt: skip
    assert found == {
        (("group", "astha"), ("job", "astha")): "1",
        (("group", "heavy"), ("job", "astha")): "1",
        (("group", "astha"), ("job", "small")): "1",
    }
    unhealthy = [(rule["name"], rule.get("lastError")) for rule in prometheus.rules() if rule["health"] != "ok"]
    assert unhealthy == []
    firing = prometheus.query('ALERTS{alertstate="firing", alertname!~"AsthaDisk.*"}')
    assert [each["metric"]["alertname"] for each in firing] == []
