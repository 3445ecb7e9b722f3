"""Astha's own loaders read the settings and the subscriptions of every pod, and find them consistent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from astha.clock import SystemLoopClock
from astha.daemon import NamedSubscriber
from astha.listener.opening import http_options
from astha.routing.subscriptions import read_subscriptions
from astha.server.options import listener_options
from astha.settings import Settings, load_settings
from astha.wiring import context, load_components, require_group, selected, source_kind
from components.compactor.settings import CompactorSettings
from components.kafka_sink.settings import KafkaSinkSettings
from tests.deploy.kubernetes.manifests import BUILT
from tests.deploy.kubernetes.test_manifests import executor
from tests.deploy.kubernetes.test_policies import ALL, DAEMONS, every_daemon
from tests.deploy.kubernetes.workloads import Workload, selects, workloads
from tests.doubles.memory_store import MemoryStore

EXIT_S = 5.0
"""The daemon ends its process after so long, if threads of a component remain: astha/cli/run.py."""


def load(workload: Workload, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.startswith("ASTHA_")]:
        monkeypatch.delenv(name)
    for name, value in workload.environment(directory).items():
        if name.startswith("ASTHA_"):
            monkeypatch.setenv(name, value)
    return load_settings()


@every_daemon
def test_a_daemon_starts_with_these_settings(
    workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(workload, tmp_path, monkeypatch)
    require_group(settings)
    assert settings.registry.is_postgres
    assert settings.lake.warehouse.startswith("s3://"), "pods share no disk"
    options = listener_options(settings.server)
    assert options.token is not None
    assert options.read_token is not None
    assert settings.server.port == workload.pod["containers"][0]["ports"][0]["containerPort"]
    assert workload.name in settings.server.allowed_hosts, "the name of its service"
    subscriptions = selected(read_subscriptions(settings.subscriptions), settings)
    found = load_components(subscriptions, context(settings, MemoryStore(), SystemLoopClock()), settings.subscriptions)
    assert [each for each in found if not isinstance(each, NamedSubscriber)] == []
    longest_drain = max(subscription.lane.drain_timeout_s for subscription in subscriptions.values())
    needed = settings.daemon.shutdown_timeout_s + longest_drain + EXIT_S
    assert workload.pod["terminationGracePeriodSeconds"] > needed


def test_the_catalog_starts_with_these_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [catalog] = [workload for workload in ALL if workload.name == "astha-catalog"]
    [container] = catalog.pod["containers"]
    settings = load(catalog, tmp_path, monkeypatch)
    options = http_options(settings.catalog, "catalog")
    assert container["command"] == ["astha", "catalog"]
    assert options.token is not None
    assert options.read_token is not None
    assert settings.catalog.port == container["ports"][0]["containerPort"]
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "/livez",
        "/readyz",
    }
    assert catalog.name in settings.catalog.allowed_hosts, "the name of its service"
    [service] = [each for each in catalog.of_kind("Service") if each["metadata"]["name"] == catalog.name]
    assert [port["port"] for port in service["spec"]["ports"]] == [settings.catalog.port]


def test_the_migration_has_the_owners_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = [workload for workload in ALL if workload.document["kind"] == "Job"]
    assert "astha_owner" in load(job, tmp_path, monkeypatch).registry.shown


def test_the_verification_has_the_lake_of_the_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verification, daemon = (
        load(workload, tmp_path / workload.name, monkeypatch)
        for workload in sorted(workloads("ha-monitored"), key=lambda each: each.is_daemon)
    )
    assert verification.lake == daemon.lake
    assert verification.registry == daemon.registry


@pytest.mark.parametrize("name", sorted(set(BUILT) - {"migration"}))
def test_every_component_runs_in_one_group(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[str] = []
    running: list[str] = []
    for workload in (each for each in workloads(name) if each.is_daemon):
        settings = load(workload, tmp_path / workload.name, monkeypatch)
        in_file = read_subscriptions(settings.subscriptions)
        groups.append(settings.group)
        running += selected(in_file, settings)
    assert sorted(running) == sorted(in_file)
    assert len(set(groups)) == len(groups)


def test_the_components_are_those_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [single] = workloads("single")
    settings = load(single, tmp_path, monkeypatch)
    ours = {name: each.tables for name, each in read_subscriptions(Path("subscriptions.yaml")).items()}
    assert {name: each.tables for name, each in read_subscriptions(settings.subscriptions).items()} == ours


def test_followers_receive_the_tables_of_their_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, *followers = (each for each in workloads("split") if each.is_daemon)
    in_file = read_subscriptions(load(leader, tmp_path / "leader", monkeypatch).subscriptions)
    sender = in_file["kafka_transactions"]
    sink = KafkaSinkSettings(**sender.settings)
    assert sink.layout == "transactions"
    for workload in followers:
        settings = load(workload, tmp_path / workload.name, monkeypatch)
        assert source_kind(settings) == "kafka"
        address = settings.source.url
        assert address is not None
        servers = ",".join(sink.bootstrap_servers)
        assert address.get_secret_value() == f"kafka://{servers}/{sink.transactions_topic}"
        for component in selected(in_file, settings).values():
            assert component.tables <= sender.tables


@every_daemon
def test_the_compactor_has_java(workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(workload, tmp_path, monkeypatch)
    compacts = "compactor" in selected(read_subscriptions(settings.subscriptions), settings)
    image = workload.pod["containers"][0]["image"].rpartition(":")[0]
    assert image == ("astha-spark" if compacts else "astha")


def test_executors_reach_the_driver_and_the_worker_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [driver] = [workload for workload in DAEMONS if workload.document["kind"] == "StatefulSet"]
    subscriptions = read_subscriptions(load(driver, tmp_path, monkeypatch).subscriptions)
    spark = CompactorSettings(**subscriptions["compactor"].settings).spark
    options = {name: value.get_secret_value() for name, value in spark.options.items()}
    namespace = driver.document["metadata"]["namespace"]
    pod = f"{driver.name}-0"
    [service] = [each for each in driver.of_kind("Service") if each["metadata"]["name"] == driver.name]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert spark.host == f"{pod}.{driver.name}.{namespace}.svc"
    assert options["spark.kubernetes.driver.pod.name"] == pod
    assert options["spark.kubernetes.namespace"] == namespace
    assert options["spark.kubernetes.container.image"] == driver.pod["containers"][0]["image"]

    ports = {spark.port, int(options["spark.driver.port"]), int(options["spark.driver.blockManager.port"])}
    assert ports <= {port["port"] for port in service["spec"]["ports"]}
    [inward] = [each for each in driver.of_kind("NetworkPolicy") if each["metadata"]["name"] == "astha-driver"]
    assert {port["port"] for rule in inward["spec"]["ingress"] for port in rule["ports"]} == ports
    [outward] = [each for each in driver.of_kind("NetworkPolicy") if each["metadata"]["name"] == "astha-executor"]
    assert selects(outward["spec"]["podSelector"], executor()["metadata"]["labels"])
    sources = [peer["podSelector"] for rule in inward["spec"]["ingress"] for peer in rule["from"]]
    assert all(selects(source, executor()["metadata"]["labels"]) for source in sources)
    assert selects(inward["spec"]["podSelector"], driver.labels)
    allowed = {port["port"] for rule in outward["spec"]["egress"] for port in rule["ports"]}
    assert ports <= allowed
    assert 5432 not in allowed, "executors have no access to the registry"
    executors = {port["port"] for rule in outward["spec"]["ingress"] for port in rule["ports"]}
    assert executors == {int(options["spark.blockManager.port"])}

    directory = Path(options["spark.kubernetes.executor.podTemplateFile"])
    mounts = {mount["mountPath"] for mount in driver.pod["containers"][0]["volumeMounts"]}
    assert str(directory.parent) in mounts
    accounts = {each["metadata"]["name"] for each in driver.of_kind("ServiceAccount")}
    assert options["spark.kubernetes.authenticate.executor.serviceAccountName"] in accounts
