"""compose.yaml: valid by the specification's schema, and in line with our own rules."""

from __future__ import annotations

import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from astha.redaction import is_secret_name, secrets_in_url
from tests.deploy.docker.compose_schema import compose_schema
from tests.deploy.docker.demo_files import DOCKER, OUR_IMAGES, ROOT, bind_mounts, compose, named_volumes, services

SERVICES = services()
_WRITERS_OF_SECRETS = {"secrets"}

each_service = pytest.mark.parametrize("name", sorted(SERVICES))


def test_valid_by_the_schema() -> None:
    schema = compose_schema()
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(compose())] == []
    wrong: dict[str, Any] = {"services": {"one": {"image": "one:1", "read_onyl": True}}}
    assert list(validator.iter_errors(wrong)), "the schema must refuse unknown fields"


def test_the_services_of_the_demo() -> None:
    wanted = {"postgres", "s3", "kafka", "mosquitto", "prometheus", "grafana", "migrate", "leader", "follower", "demo",
              "catalog"}  # fmt: skip
    assert wanted <= set(SERVICES)
    assert "wal_level=logical" in SERVICES["postgres"]["command"]


@each_service
def test_an_image_is_pinned(name: str) -> None:
    image = SERVICES[name]["image"]
    if image in OUR_IMAGES:
        assert SERVICES[name]["build"]["target"] == OUR_IMAGES[image]
    else:
        assert re.fullmatch(r"[\w.-]+\.(io|dev|com)/[\w./-]+:v?\d+\.\d+(\.\d+)?(-[\w.]+)?", image), image


@each_service
def test_a_service_is_limited(name: str) -> None:
    limits = SERVICES[name]["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory", "pids"}
    assert SERVICES[name]["logging"]["options"]["max-size"]


@each_service
def test_a_service_is_unprivileged(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    if service["image"] in OUR_IMAGES and name not in _WRITERS_OF_SECRETS:
        assert "user" not in service, "the image's own user"


@each_service
def test_no_secret_is_in_the_environment(name: str) -> None:
    for variable, value in SERVICES[name].get("environment", {}).items():
        assert not list(secrets_in_url(value)), variable
        if is_secret_name(variable):
            assert variable.endswith("_FILE"), f"{variable} looks like a secret: use a file"
            assert value.startswith("/run/secrets/")


def test_secrets_are_read_only_and_only_where_needed() -> None:
    for name, service in SERVICES.items():
        volumes = [volume for volume in named_volumes(service) if volume[0].startswith("secrets")]
        if name in _WRITERS_OF_SECRETS:
            continue
        allowed = "secrets-astha" if service["image"] in OUR_IMAGES else f"secrets-{name}"
        assert volumes in ([], [(allowed, "/run/secrets", "ro")]), name


def test_a_service_that_others_wait_for_can_be_waited_for() -> None:
    for name, service in SERVICES.items():
        for other, condition in service.get("depends_on", {}).items():
            needed = SERVICES[other]
            if condition["condition"] == "service_completed_successfully":
                assert needed["restart"].startswith("on-failure"), f"{name} waits for the end of {other}"
            else:
                assert condition["condition"] == "service_healthy"
                assert needed["image"] in OUR_IMAGES or "test" in needed["healthcheck"], f"{name} waits for {other}"


def test_secrets_exist_before_they_are_read() -> None:
    def waits_for(name: str) -> set[str]:
        direct = set(SERVICES[name].get("depends_on", {}))
        return direct.union(*(waits_for(other) for other in direct)) if direct else set()

    for name, service in SERVICES.items():
        if any(target == "/run/secrets" for _, target, _ in named_volumes(service)):
            assert "secrets" in waits_for(name), name


@each_service
def test_mounted_files_exist_and_are_read_only(name: str) -> None:
    for target, source in bind_mounts(SERVICES[name]).items():
        if (ROOT / "deploy/monitoring").exists() or "monitoring" not in source.parts:
            assert source.exists(), source
        assert any(mount.endswith(f":{target}:ro") for mount in SERVICES[name]["volumes"])


def test_named_volumes_are_declared_and_used() -> None:
    used = {volume for service in SERVICES.values() for volume, _, _ in named_volumes(service)}
    assert used == set(compose()["volumes"])


@each_service
def test_ports_are_published_on_loopback_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:"), port


def test_prometheus_scrapes_every_daemon_with_a_token() -> None:
    config = yaml.safe_load((DOCKER / "config/prometheus.yml").read_text())
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "astha"]
    daemons = {
        f"{name}:27840" for name, service in SERVICES.items() if "ASTHA_SERVER__HOST" in service.get("environment", {})
    }
    assert set(job["static_configs"][0]["targets"]) == daemons == {"leader:27840", "follower:27840"}
    assert job["authorization"]["credentials_file"] == "/run/secrets/read_token"
    (catalog,) = [job for job in config["scrape_configs"] if job["job_name"] == "astha-catalog"]
    assert catalog["authorization"] == job["authorization"]
    assert catalog["static_configs"][0]["targets"] == ["catalog:27841"]
    assert "/etc/prometheus/rules" in bind_mounts(SERVICES["prometheus"])


def test_grafana_is_provisioned_from_mounted_directories() -> None:
    provider = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/astha.yaml").read_text())["providers"][0]
    assert provider["options"]["path"] in bind_mounts(SERVICES["grafana"])
    source = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"


def test_daemons_get_more_time_to_stop_than_they_take() -> None:
    from astha.routing.subscriptions import read_subscriptions
    from astha.settings.groups import DaemonSettings

    for name in ("leader", "follower"):
        lanes = read_subscriptions(DOCKER / f"config/{name}.yaml").values()
        needed = DaemonSettings().shutdown_timeout_s + max(lane.lane.drain_timeout_s for lane in lanes)
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > needed
