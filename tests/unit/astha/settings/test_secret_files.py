from __future__ import annotations

from pathlib import Path

import pytest

from astha.errors import ConfigError
from astha.routing.subscriptions import read_subscriptions
from astha.settings import load_settings

PASSWORD = "open sesame"
URL = "postgresql://me:open%20sesame@db.example/registry"
TOKEN = "a-token-of-some-length"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ASTHA_REGISTRY", "ASTHA_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "secrets"
    directory.mkdir()
    monkeypatch.setenv("ASTHA_SECRETS", str(directory))
    return directory


def test_a_file_holds_the_value_of_the_setting_that_it_is_named_for(secrets: Path) -> None:
    (secrets / "registry.url").write_text(f"{URL}\n")
    (secrets / "server.token").write_text(f"{TOKEN}\r\n")
    (secrets / "source.kafka.sasl.user").write_text("ann")
    (secrets / "source.kafka.sasl.password").write_text(PASSWORD)
    (secrets / "lake.catalog.s3.secret-access-key").write_text("a key\n")
    settings = load_settings()
    assert settings.registry.url.get_secret_value() == URL
    assert settings.server.secret() == TOKEN
    assert settings.source.kafka.sasl is not None
    assert settings.source.kafka.sasl.password.get_secret_value() == PASSWORD
    assert settings.lake.catalog_properties() == {"s3.secret-access-key": "a key"}
    assert {PASSWORD, TOKEN, "a key"} <= set(settings.redactor().secrets)


def test_a_secret_overrides_the_file_and_the_environment_overrides_both(
    secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "astha.yaml"
    config.write_text("server: {port: 1, host: '::1', max_watchers: 7}\n")
    (secrets / "server.port").write_text("2")
    (secrets / "server.max_watchers").write_text("8")
    monkeypatch.setenv("ASTHA_SERVER__PORT", "3")
    server = load_settings(config).server
    assert (server.port, server.host, server.max_watchers) == (3, "::1", 8)


def test_files_of_a_systemd_credential_that_is_a_directory_have_its_name_before_theirs(secrets: Path) -> None:
    (secrets / "astha_server.token").write_text(TOKEN)
    assert load_settings().server.secret() == TOKEN


def test_files_that_name_no_setting_are_ignored(secrets: Path) -> None:
    (secrets / "tls.key").write_bytes(b"\xff")
    (secrets / "group").write_text("no secret")
    (secrets / "..data").mkdir()  # Kubernetes keeps the files there
    assert load_settings().group == "astha"


def test_an_error_names_the_file_and_not_its_content(secrets: Path) -> None:
    (secrets / "registry.ulr").write_text(URL)
    with pytest.raises(ConfigError, match=r"secrets/registry\.ulr: there is no setting .*did you mean 'registry\.url'"):
        load_settings()
    (secrets / "registry.ulr").rename(secrets / "server.token")
    (secrets / "server.token").write_text("short")
    with pytest.raises(ConfigError, match=r"secrets/server\.token: server\.token: a token must have") as caught:
        load_settings()
    assert "short" not in str(caught.value)


def test_a_directory_that_is_not_there_is_an_error(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_SECRETS", str(secrets / "missing"))
    with pytest.raises(ConfigError, match=r"ASTHA_SECRETS: can't read .*missing"):
        load_settings()


def test_a_file_holds_a_value_of_a_component(secrets: Path, tmp_path: Path) -> None:
    path = tmp_path / "subscriptions.yaml"
    path.write_text(
        "components:\n"
        "  kafka_sink: {tables: [topics], settings: {prefix: a, sasl: {user: me}}}\n"
        "  mqtt_sink: {tables: [topics]}\n"
    )
    (secrets / "components.kafka_sink.settings.sasl.password").write_text(f"{PASSWORD}\n")
    (secrets / "components.mqtt_sink.settings.password").write_text("other")
    (secrets / "components.elsewhere.settings.password").write_text("of another daemon")
    found = read_subscriptions(path)
    assert found["kafka_sink"].settings == {"prefix": "a", "sasl": {"user": "me", "password": PASSWORD}}
    assert found["mqtt_sink"].settings == {"password": "other"}
    assert set(found) == {"kafka_sink", "mqtt_sink"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("components.audit.password", r"name the file components\.audit\.settings\.NAME"),
        ("components.audit.settings.path.password", "has a value where the file's name expects a mapping"),
    ],
)
def test_a_file_for_no_place_in_a_components_settings_is_an_error(
    secrets: Path, tmp_path: Path, name: str, message: str
) -> None:
    path = tmp_path / "subscriptions.yaml"
    path.write_text("components:\n  audit: {use: 'acme:create', tables: [topics], settings: {path: /x}}\n")
    (secrets / name).write_text(PASSWORD)
    with pytest.raises(ConfigError, match=message) as caught:
        read_subscriptions(path)
    assert name in str(caught.value)
    assert PASSWORD not in str(caught.value)
