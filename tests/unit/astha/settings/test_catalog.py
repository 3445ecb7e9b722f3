from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astha.errors import ConfigError
from astha.listener.opening import http_options
from astha.settings import Settings, load_settings

SECRET = "a secret of some length"
KEY = "k" * 32


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASTHA_REGISTRY", "ASTHA_CONFIG", "ASTHA_SECRETS"):
        monkeypatch.delenv(name, raising=False)


def load(**catalog: Any) -> Settings:
    return load_settings(flags={"catalog": catalog})


def test_clients_and_their_secrets_are_never_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET} of a file\n")
    (tmp_path / "key").write_text(f"{KEY}\n")
    clients = {"spark": {"secret": SECRET, "grants": {"*": "read", "eu.shop": "write"}},
               "trino": {"secret_file": str(tmp_path / "secret")}}  # fmt: skip
    settings = load(clients=clients, token_key_file=str(tmp_path / "key"))
    assert settings.catalog.clients["trino"].secret_text() == f"{SECRET} of a file"
    assert settings.catalog.signing_key() == KEY
    assert {SECRET, f"{SECRET} of a file", KEY} <= set(settings.redactor().secrets)
    assert SECRET not in repr(settings)


def test_a_secret_may_be_a_file_of_the_secrets_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_SECRETS", str(tmp_path))
    (tmp_path / "catalog.clients.spark.secret").write_text(f"{SECRET}\n")
    (tmp_path / "catalog.token_key").write_text(KEY)
    catalog = load(clients={"spark": {"grants": {"eu": "read"}}}).catalog
    assert (catalog.clients["spark"].secret_text(), catalog.clients["spark"].grants) == (SECRET, {"eu": "read"})
    assert catalog.signing_key() == KEY


@pytest.mark.parametrize(
    ("catalog", "message"),
    [
        ({"clients": {"spark": {}}}, "catalog.clients.spark: set either `secret` or `secret_file`"),
        ({"clients": {"spark": {"secret": "short"}}}, "catalog.clients.spark: a client's secret must have at least 16"),
        ({"clients": {"spark": {"secret": SECRET, "grants": {"eu": "all"}}}}, "grants.eu: Input should be 'read' or"),
        ({"clients": {"spark": {"secret": SECRET, "grants": {"eu.*": "read"}}}}, "'eu.*' is no namespace"),
        ({"clients": {"spark": {"secret": SECRET, "grants": {"eu..a": "read"}}}}, "'eu..a' is no namespace"),
        ({"clients": {"a:b": {"secret": SECRET}}}, "'a:b' is no name of a client"),
        ({"clients": "spark"}, "catalog.clients: Input should be a valid dictionary"),
        ({"token_key": "short"}, "catalog.token_key: the key must have at least 32 characters"),
        ({"token_lifetime_s": 0}, "catalog.token_lifetime_s"),
    ],
)
def test_errors_name_the_setting_and_not_its_value(catalog: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**catalog)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_short_secret_in_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("short")
    client = load(clients={"spark": {"secret_file": str(tmp_path / "secret")}}).catalog.clients["spark"]
    with pytest.raises(ConfigError, match=r"secret: a client's secret must have at least 16 characters"):
        client.secret_text()


def test_other_machines_are_served_only_with_a_login() -> None:
    for catalog in ({}, {"token_key": KEY}):
        with pytest.raises(ConfigError, match="other machines can reach"):
            http_options(load(host="192.0.2.1", **catalog).catalog, "catalog")
    http_options(load(host="192.0.2.1", clients={"spark": {"secret": SECRET}}).catalog, "catalog")
