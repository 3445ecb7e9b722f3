from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest
from pydantic import SecretStr

from astha.errors import ComponentError, ConfigError
from astha.subscribers import ComponentContext, EventSubscriber, LakeSettings, TransactionSubscriber
from astha.subscribers.loader import load_component
from astha.testing import ManualClock
from registry.contract import MetadataStore

URL = "postgresql://me:open-sesame@h/d"
CONTEXT = ComponentContext(cast("MetadataStore", object()), ManualClock(), SecretStr(URL), LakeSettings())

AUDIT = """
import sys
from functools import partial
import pydantic
from astha.testing import RecordingSubscriber

def create(settings, context):
    if settings.get("refuse"):
        raise ValueError("not like this")
    return RecordingSubscriber(*settings.get("tables", ["topics"]))

class Settings(pydantic.BaseModel):
    model_config = {"extra": "forbid"}
    depth: int = 1
    inner: dict[str, int] = {}

def strict(settings, context):
    Settings.model_validate(settings)

def curious(settings, context):
    made = RecordingSubscriber("topics")
    made.url = lambda: context.registry_url.get_secret_value()
    made.database = lambda: context.database
    return made

def nothing(settings, context):
    return None

def buggy(settings, context):
    return {}["absent"]

def quits(settings, context):
    sys.exit(5)

def needs(settings, context):
    import a_package_that_is_not_installed

class Shy(RecordingSubscriber):
    @property
    def subscribed_tables(self):
        raise RuntimeError("not now")

def shy(settings, context):
    return Shy("topics")

class Transactions:
    subscribed_tables = frozenset({"topics"})

    async def on_transaction(self, events): ...
    async def on_health(self): ...
    async def on_refresh(self, snapshot): ...

def transactions(settings, context):
    return Transactions()

def typo(settings, context):
    made = RecordingSubscriber("topics")
    made.on_transction = made.on_event
    return made

def incomplete(settings, context):
    from astha.subscribers import Component, Topic
    class Undecided(Component):
        tables = (Topic,)
        async def on_event(self, event): ...
    return Undecided()

def mistyped(settings, context):
    from astha.subscribers import Component
    class Mistyped(Component):
        async def on_refersh(self, snapshot): ...

def synchronous(settings, context):
    made = RecordingSubscriber("topics")
    setattr(made, settings["method"], lambda *arguments: None)
    return made

def wrapped(settings, context):
    made = RecordingSubscriber("topics")
    made.on_event = partial(made.on_event)
    made.on_health = CallMe()
    return made

class CallMe:
    async def __call__(self):
        return True
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the name of a package that is not one of our components."""
    name = f"acme_{tmp_path.name.replace('-', '_')}"
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "audit.py").write_text(AUDIT)
    (package / "declared.py").write_text(f"from {name}.audit import curious\nneeds_registry_url = True\n")
    (package / "needy.py").write_text("import a_package_that_is_not_installed\n")
    (package / "typo.py").write_text("def create(settings, context) return None\n")
    (package / "quits.py").write_text("import sys\nsys.exit('no licence')\n")
    (package / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return name


def test_a_component_from_elsewhere(elsewhere: str) -> None:
    subscriber = load_component("audit", {"tables": ["topics", "tables"]}, CONTEXT, f"{elsewhere}.audit:create")
    assert subscriber.subscribed_tables == {"topics", "tables"}


def test_an_unknown_component() -> None:
    with pytest.raises(ConfigError, match=r"no component 'absent' \(components\.absent\).*`use: package"):
        load_component("absent", {}, CONTEXT)


@pytest.mark.parametrize(
    ("use", "complaint"),
    [
        ("no_such_package.audit:create", "no component 'audit'.*install it, or correct `use`"),
        ("{}.absent:create", "no component 'audit'"),
        ("{}.audit:make", "has no function `make"),
    ],
)
def test_a_wrong_entry_in_the_file_is_a_configuration_error(elsewhere: str, use: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_component("audit", {}, CONTEXT, use.format(elsewhere))


@pytest.mark.parametrize(
    ("use", "complaint"),
    [
        ("{}.needy:create", "component audit needs the package 'a_package_that_is_not_installed'"),
        ("{}.typo:create", "component audit: the import of .*typo failed: SyntaxError"),
        ("{}.quits:create", "component audit: the import of .*quits tried to end the process with code no licence"),
        ("{}.broken:create", "component audit: the import of .*broken failed: ZeroDivisionError"),
        ("{}.audit:buggy", "component audit: .*audit:buggy failed: KeyError: 'absent'"),
        ("{}.audit:quits", "component audit: .*audit:quits tried to end the process with code 5"),
        ("{}.audit:needs", "component audit needs the package 'a_package_that_is_not_installed'"),
        ("{}.audit:shy", "component audit: its subscribed_tables raises RuntimeError"),
        (
            "{}.audit:nothing",
            "component audit: .*not a Subscriber: it lacks subscribed_tables, on_health, on_refresh, on_event or",
        ),
    ],
)
def test_faulty_code_is_a_component_error(elsewhere: str, use: str, complaint: str) -> None:
    with pytest.raises(ComponentError, match=complaint) as raised:
        load_component("audit", {}, CONTEXT, use.format(elsewhere))
    assert raised.value.remedy


@pytest.mark.parametrize(
    "method", ["on_event", "on_health", "on_refresh", "on_transaction", "on_transactions", "start", "stop"]
)
def test_a_method_that_is_not_asynchronous_is_refused(elsewhere: str, method: str) -> None:
    with pytest.raises(ComponentError, match=f"component audit: {method} of .* is not asynchronous") as raised:
        load_component("audit", {"method": method}, CONTEXT, f"{elsewhere}.audit:synchronous")
    assert raised.value.remedy == f"declare it `async def {method}(...)`: the daemon awaits it"


def test_on_event_is_not_demanded_of_a_component_that_takes_transactions(elsewhere: str) -> None:
    made = load_component("audit", {}, CONTEXT, f"{elsewhere}.audit:transactions")
    assert isinstance(made, TransactionSubscriber)
    assert not isinstance(made, EventSubscriber)


def test_asynchronous_is_more_than_async_def(elsewhere: str) -> None:
    assert load_component("audit", {}, CONTEXT, f"{elsewhere}.audit:wrapped") is not None


def test_settings_that_a_component_refuses(elsewhere: str) -> None:
    with pytest.raises(ConfigError, match="refuses its settings: not like this"):
        load_component("audit", {"refuse": True}, CONTEXT, f"{elsewhere}.audit:create")


def test_pydantic_errors_are_shown_without_values_and_links(elsewhere: str) -> None:
    settings = {"depth": "open-sesame", "inner": {"a": "open-sesame"}, "dept": 2}
    with pytest.raises(ConfigError) as caught:
        load_component("audit", settings, CONTEXT, f"{elsewhere}.audit:strict")
    words = str(caught.value)
    assert "depth: Input should be a valid integer" in words
    assert "inner.a: Input should be a valid integer" in words
    assert "there is no setting 'dept'" in words
    assert not [part for part in ("sesame", "https://", "input_value", "\n") if part in words]


def test_registry_credentials_are_given_only_to_components_that_declare_the_need(elsewhere: str) -> None:
    declared = load_component("audit", {}, CONTEXT, f"{elsewhere}.declared:curious")
    assert declared.url() == URL  # type: ignore[attr-defined]
    undeclared = load_component("audit", {}, CONTEXT, f"{elsewhere}.audit:curious")
    assert declared.database() == undeclared.database() == "postgresql"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"needs_registry_url = True.*context\.store"):
        undeclared.url()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("iceberg_updater", True), ("snapshotter", True),
        ("compactor", False), ("metadata_orchestrator", False), ("segment_store", False), ("kafka_sink", False),
        ("mqtt_sink", False),
    ],
)  # fmt: skip
def test_which_of_our_components_get_the_credentials(name: str, needed: bool) -> None:
    assert getattr(import_module(f"components.{name}"), "needs_registry_url", False) is needed
