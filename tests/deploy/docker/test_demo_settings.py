"""Astha accepts every setting, subscription and secret of the demo."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from astha.clock import SystemLoopClock
from astha.routing.subscriptions import read_subscriptions
from astha.settings import Settings, load_settings
from astha.wiring import BadComponent, context, load_components
from registry.contract import MetadataStore
from tests.deploy.docker.demo_files import DOCKER, OUR_IMAGES, ROOT, bind_mounts, services

OURS = {name: service for name, service in services().items() if service["image"] in OUR_IMAGES and name != "secrets"}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    make_secrets(tmp_path)
    return tmp_path


def make_secrets(directory: Path) -> None:
    subprocess.run([sys.executable, str(DOCKER / "make_secrets.py"), str(directory)], check=True, timeout=60)


def contents(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


def load(name: str, secrets: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Loads the settings like the service's container, with the files that it mounts."""
    service = OURS[name]
    places = {"/run/secrets": str(secrets / "astha"), **{k: str(v) for k, v in bind_mounts(service).items()}}
    for variable, value in service["environment"].items():
        for target, source in places.items():
            value = value.replace(target, source)
        monkeypatch.setenv(variable, value)
    return load_settings()


@pytest.mark.parametrize("name", sorted(OURS))
def test_settings_are_accepted(name: str, secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(name, secrets, monkeypatch)
    assert settings.registry.is_postgres
    password = (secrets / "postgres/password").read_text()
    assert password in settings.registry.conninfo()
    assert settings.lake.s3.secret_key is not None
    assert settings.lake.s3.secret_key.get_secret_value() == (secrets / "s3/secret_key").read_text()
    assert password in set(settings.registry.secrets())


@pytest.mark.parametrize("name", ["leader", "follower"])
def test_components_accept_their_settings(name: str, secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(name, secrets, monkeypatch)
    assert settings.server.host == "0.0.0.0"  # noqa: S104
    assert settings.server.token_file is not None
    made = context(settings, create_autospec(MetadataStore, instance=True), SystemLoopClock())
    subscriptions = read_subscriptions(settings.subscriptions)
    loaded = load_components(subscriptions, made, settings.subscriptions)
    assert [str(one.error) for one in loaded if isinstance(one, BadComponent)] == []
    assert len(loaded) == len(subscriptions)


def test_the_demo_runs_every_component_of_the_default_file() -> None:
    default = set(read_subscriptions(ROOT / "subscriptions.yaml"))
    leader, follower = (set(read_subscriptions(DOCKER / f"config/{name}.yaml")) for name in ("leader", "follower"))
    assert default <= leader | follower
    assert not leader & follower


def test_the_small_image_runs_all_but_the_compactor() -> None:
    default = read_subscriptions(ROOT / "subscriptions.yaml")
    assert read_subscriptions(DOCKER / "subscriptions.yaml") == {
        name: subscription for name, subscription in default.items() if name != "compactor"
    }


def test_the_follower_reads_what_the_leader_sends(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = read_subscriptions(DOCKER / "config/leader.yaml")
    follower = read_subscriptions(DOCKER / "config/follower.yaml")
    sink = leader["kafka_transactions"]
    assert sink.settings["layout"] == "transactions"
    assert follower["compactor"].tables <= sink.tables
    settings = load("follower", secrets, monkeypatch)
    assert settings.source.url is not None
    assert sink.settings["bootstrap_servers"] in settings.source.url.get_secret_value()
    assert settings.group != "astha"


def test_secrets_are_made_once_and_differ(tmp_path: Path) -> None:
    make_secrets(tmp_path / "one")
    first = contents(tmp_path / "one")
    assert len({text for path, text in first.items() if path.startswith("all/")}) == 6
    for path in ("astha/astha.yaml", "prometheus/read_token"):
        (tmp_path / "one" / path).unlink()  # as if the first run had been killed before
    make_secrets(tmp_path / "one")
    assert contents(tmp_path / "one") == first
    make_secrets(tmp_path / "two")
    assert not set(first.values()) & set(contents(tmp_path / "two").values())


def test_a_service_gets_its_own_secrets_alone(secrets: Path) -> None:
    for directory in secrets.iterdir():
        if directory.name not in ("all", "astha"):
            text = "".join(contents(directory).values())
            others = [path.read_text() for path in (secrets / "all").iterdir()]
            assert sum(other in text for other in others) == len(list(directory.iterdir()))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in secrets.rglob("*") if path.is_file()}
    assert modes == {0o444}
