"""subscriptions.yaml: every mistake is an error that names line and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from astha.errors import ConfigError
from astha.routing.subscriptions import read_subscriptions, require_match
from astha.subscribers.load import load_component
from astha.subscribers.policy import LanePolicy
from tests.doubles.registry import SmallRegistry

GOOD = """\
# who gets what
components:
  compactor:
    tables: [table_files, table_stats]
    lane: {delivery_timeout_s: 120, attempts: 5}
    settings: {threshold: 8}
  segment_store:
    tables:
      - topics
      - segments
"""


def read(text: str, tmp_path: Path) -> str:
    path = tmp_path / "subscriptions.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_subscriptions(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "subscriptions.yaml"
    path.write_text(GOOD)
    found = read_subscriptions(path)
    assert list(found) == ["compactor", "segment_store"]
    assert found["compactor"].tables == {"table_files", "table_stats"}
    assert found["compactor"].lane == LanePolicy(delivery_timeout_s=120, attempts=5)
    assert found["compactor"].settings == {"threshold": 8}
    assert found["segment_store"].lane == LanePolicy()


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("table_files, ", "table_flies, ", 3, ["compactor", "'table_flies'", "publishes topics, partitions"]),
        ("- topics", "- ledger", 7, ["segment_store", "'ledger'", "does not publish"]),
        ("- topics", "- segments", 7, ["'segments' twice", "remove one"]),
        ("  segment_store:", "  compactor:", 7, ["'compactor' stands twice", "keep one"]),
        ("attempts: 5", "attempts: 31", 3, ["compactor", "lane.attempts", "30"]),
        ("attempts: 5", "attempts: many", 3, ["lane.attempts"]),
        ("attempts: 5", "patience: 5", 3, ["lane.patience"]),
        ("delivery_timeout_s: 120", "delivery_timeout_s: 0", 3, ["lane.delivery_timeout_s", "greater than 0"]),
        ("tables: [table_files, table_stats]", "tables: []", 3, ["tables"]),
        ("tables: [table_files, table_stats]", "tables: table_files", 3, ["tables"]),
        ("    tables: [table_files, table_stats]\n", "", 3, ["compactor", "tables"]),
        ("settings: {threshold: 8}", "setings: {}", 3, ["setings"]),
        ("tables: [table_files, table_stats]", "tables: [table_files, table_stats", 4, ["not YAML"]),
        ("components:", "component:", 1, ["`components`"]),
    ],
)
def test_every_mistake_is_named(tmp_path: Path, old: str, new: str, line: int, words: list[str]) -> None:
    assert old in GOOD
    message = read(GOOD.replace(old, new, 1), tmp_path)
    for word in words:
        assert word in message
    if "not YAML" not in message:
        assert f"line {line}:" in message


@pytest.mark.parametrize("text", ["", "42", "- a", "components:", "components: 5", "a: &x [*x]"])
def test_files_of_another_kind(tmp_path: Path, text: str) -> None:
    assert "line" in read(text, tmp_path)


def test_a_component_with_nothing_below_it(tmp_path: Path) -> None:
    assert "line 2: component compactor" in read("components:\n  compactor:\n", tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read_subscriptions(tmp_path / "missing.yaml")


def test_the_file_must_say_what_the_component_declares(tmp_path: Path) -> None:
    path = tmp_path / "subscriptions.yaml"
    path.write_text(GOOD)
    compactor = read_subscriptions(path)["compactor"]
    require_match("compactor", compactor, frozenset({"table_files", "table_stats"}))
    with pytest.raises(ConfigError, match=r"compactor: .* add tables and remove table_stats"):
        require_match("compactor", compactor, frozenset({"table_files", "tables"}))


def test_an_unknown_component() -> None:
    with pytest.raises(ConfigError, match=r"no component 'compactro': check the name in subscriptions\.yaml"):
        load_component("compactro", {}, SmallRegistry().store)
