from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import pytest

from astha.errors import ConfigError
from astha.subscribers.load import load_component
from astha.subscribers.surroundings import Surroundings

AROUND = cast("Surroundings", object())

AUDIT = """
from astha.testing import RecordingSubscriber

def create(settings, surroundings):
    if settings.get("refuse"):
        raise ValueError("not like this")
    return RecordingSubscriber(*settings.get("tables", ["topics"]))

def nothing(settings, surroundings):
    return None
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that is not ours."""
    name = f"acme_{tmp_path.name.replace('-', '_')}"
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "audit.py").write_text(AUDIT)
    (package / "needy.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return name


def test_a_component_from_elsewhere(elsewhere: str) -> None:
    subscriber = load_component("audit", {"tables": ["topics", "tables"]}, AROUND, f"{elsewhere}.audit:create")
    assert subscriber.subscribed_tables == {"topics", "tables"}


def test_one_of_ours_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"no component 'absent' \(components\.absent\).*`use: package"):
        load_component("absent", {}, AROUND)


@pytest.mark.parametrize(
    ("use", "complaint"),
    [
        ("no_such_package.audit:create", "no component 'audit'.*install it, or correct `use`"),
        ("{}.absent:create", "no component 'audit'"),
        ("{}.needy:create", "needs the package 'a_package_that_nobody_has': install it"),
        ("{}.audit:make", "has no function `make"),
        ("{}.audit:nothing", "no Subscriber: it lacks subscribed_tables, on_event, on_health, on_refresh"),
    ],
)
def test_what_can_not_be_loaded_says_why(elsewhere: str, use: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_component("audit", {}, AROUND, use.format(elsewhere))


def test_settings_that_a_component_refuses(elsewhere: str) -> None:
    with pytest.raises(ConfigError, match="refuses its settings: not like this"):
        load_component("audit", {"refuse": True}, AROUND, f"{elsewhere}.audit:create")
