from __future__ import annotations

from pathlib import Path

import pytest

from astha.cli import settings_reference as reference
from astha.settings import load_settings

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "settings.md"


def test_the_document_matches_the_models() -> None:
    assert DOCUMENT.read_text() == reference.markdown(), "run `make docs`"


def test_every_setting_has_a_description() -> None:
    assert [entry.name for entry in reference.entries() if not entry.description.endswith(".")] == []


def test_effective_values_are_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_REGISTRY", "postgresql://me:sesame@db.example/registry")
    monkeypatch.setenv("ASTHA_SERVER__TOKEN", "a-token-of-some-length")
    values = reference.values(load_settings())
    assert values["registry.url"] == "postgresql://me:***@db.example/registry"
    assert values["server.token"] == "***"
    assert values["server.port"] == "27840"
    assert values.keys() == {entry.name for entry in reference.entries() if ".NAME." not in entry.name}


def test_settings_below_a_chosen_name_are_listed_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_CATALOG__CLIENTS__SPARK__SECRET", "a-secret-of-some-length")
    assert reference.values(load_settings())["catalog.clients"] == "spark=set"
    assert "catalog.clients.NAME.secret" in {entry.name for entry in reference.entries()}
