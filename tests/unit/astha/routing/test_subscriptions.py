from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pydantic import SecretStr

from astha.daemon import NamedSubscriber
from astha.errors import ConfigError
from astha.routing.subscriptions import Subscription, read_subscriptions, require_match
from astha.subscribers import ComponentContext, LakeSettings
from astha.testing import ManualClock
from astha.wiring import BadComponent, load_components
from registry.contract import MetadataStore

SHIPPED = Path(__file__).parents[4] / "subscriptions.yaml"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "subscriptions.yaml"


def test_the_shipped_subscriptions_match_their_components() -> None:
    around = ComponentContext(
        cast("MetadataStore", object()), ManualClock(), SecretStr("sqlite:///r.db"), LakeSettings()
    )
    shipped = read_subscriptions(SHIPPED)
    for component in load_components(shipped, around, SHIPPED):
        assert isinstance(component, NamedSubscriber), component
        assert component.subscriber.subscribed_tables == shipped[component.name].tables
    assert {"iceberg_updater", "metadata_orchestrator", "snapshotter"} <= shipped.keys()


def test_in_memory_components_can_not_hold(path: Path) -> None:
    around = ComponentContext(
        cast("MetadataStore", object()), ManualClock(), SecretStr("sqlite:///r.db"), LakeSettings()
    )
    path.write_text(
        "components:\n"
        "  compactor: {tables: [table_files, table_stats, table_delete_files], lane: {on_exhausted: hold}}\n"
        "  iceberg_updater:\n"
        "    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]\n"
        "    lane: {on_exhausted: hold}\n"
    )
    bad, good = load_components(read_subscriptions(path), around, path)
    assert isinstance(bad, BadComponent)
    assert "line 2: component compactor can't hold: its state is in memory" in str(bad.error)
    assert isinstance(good, NamedSubscriber)


def test_optional_keys_of_an_entry(path: Path) -> None:
    path.write_text(
        """
components:
  iceberg_updater:
    tables: [table_metadata, table_files]
    lane: {delivery_timeout_s: 120}
    settings: {max_snapshots: 10}
  audit:
    use: acme.audit:create
    tables: [tables]
"""
    )
    found = read_subscriptions(path)
    assert found["iceberg_updater"].tables == {"table_metadata", "table_files"}
    assert found["iceberg_updater"].lane.delivery_timeout_s == 120
    assert found["iceberg_updater"].settings == {"max_snapshots": 10}
    assert found["audit"].use == "acme.audit:create"
    assert found["audit"].line == 7


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: expected one key `components`"),
        ("components:\n", "line 1: expected one key `components`"),
        ("components: {}\nmore: 1\n", "line 1: expected one key `components`"),
        ("components:\n  a:\n    tables: [topics, topicz]\n", "line 2: component a subscribes to 'topicz'"),
        ("components:\n  a:\n    tables: [topics, topics]\n", "line 2: component a names 'topics' twice"),
        ("components:\n  a:\n    tables: []\n", "line 3: component a: tables:"),
        ("components:\n  a: {tables: [topics]}\n  a: {tables: [topics]}\n", "line 3: 'a' appears twice"),
        ("components:\n  a:\n    tables: [topics]\n    lanes: {}\n", "line 4: component a: lanes: Extra inputs"),
        (
            "components:\n  a:\n    tables: [topics]\n    lane:\n      attempts: 31\n",
            "line 5: component a: lane.attempts",
        ),
        ("components:\n  a:\n    tables: [topics]\n    use: nonsense\n", "line 4: component a: use:"),
        ("components:\n  a-b: {tables: [topics]}\n", "line 2: 'a-b' can't be a component's name"),
        ("components:\n  5: {tables: [topics]}\n", "line 2: 5 can't be a component's name"),
        ("components: [\n", "not YAML"),
    ],
)
def test_errors_name_file_and_line(path: Path, text: str, complaint: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_subscriptions(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert complaint in str(caught.value)


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file: list the components in it"):
        read_subscriptions(path)


def test_file_and_component_must_agree() -> None:
    subscription = Subscription(tables=frozenset({"topics", "segments"}))
    require_match("a", subscription, frozenset({"topics", "segments"}))
    with pytest.raises(ConfigError, match="add tables and remove segments"):
        require_match("a", subscription, frozenset({"topics", "tables"}))
