"""subscriptions.yaml: the one place that says which component gets which tables.

components:
  iceberg_updater:
    tables: [table_metadata, table_files]
    lane: {delivery_timeout_s: 120}      # optional, see LanePolicy
    settings: {...}                      # optional, the component's own
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astha.errors import ConfigError
from astha.subscribers.policy import LanePolicy
from registry.schema import PUBLISHED_TABLES


class Subscription(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tables: frozenset[str] = Field(min_length=1)
    lane: LanePolicy = LanePolicy()
    settings: Mapping[str, Any] = Field(default_factory=dict)


class _Lined(yaml.SafeLoader):
    """Refuses a key that stands twice, where YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise ConfigError(f"line {line}: {key!r} stands twice: keep one of them")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_subscriptions(path: Path) -> dict[str, Subscription]:
    """By component. ConfigError names file, line and remedy."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    try:
        return _parse(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _parse(text: str) -> dict[str, Subscription]:
    try:
        root = yaml.compose(text, Loader=_Lined)
        content = yaml.load(text, Loader=_Lined)  # noqa: S506  (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"line {line}: not YAML: {error.problem}") from error
    if not isinstance(content, dict) or set(content) != {"components"} or not isinstance(content["components"], dict):
        raise ConfigError("line 1: expected one key `components`, with a mapping of component names below it")
    lines = _lines(root)
    subscriptions = {}
    for name, entry in content["components"].items():
        line = lines[name]
        if isinstance(entry, dict):
            _check_tables(name, entry.get("tables"), line)
        try:
            subscriptions[name] = Subscription.model_validate(entry)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "entry"
            raise ConfigError(f"line {line}: component {name}: {where}: {first['msg']}") from error
    return subscriptions


def _check_tables(name: str, tables: object, line: int) -> None:
    if not isinstance(tables, list):
        return  # pydantic says it better
    unknown = [table for table in tables if table not in PUBLISHED_TABLES]
    if unknown:
        raise ConfigError(
            f"line {line}: component {name} subscribes to {unknown[0]!r}, which the registry does not publish; "
            f"it publishes {', '.join(PUBLISHED_TABLES)}"
        )
    twice = {table for table in tables if tables.count(table) > 1}
    if twice:
        raise ConfigError(f"line {line}: component {name} names {sorted(twice)[0]!r} twice: remove one")


def _lines(root: yaml.Node) -> dict[str, int]:
    """Where each component is named."""
    (_, components), *_ = root.value
    return {key.value: key.start_mark.line + 1 for key, _ in components.value}


def require_match(name: str, subscription: Subscription, declared: frozenset[str]) -> None:
    """What the file says must be what the component declares."""
    if subscription.tables != declared:
        missing, extra = sorted(declared - subscription.tables), sorted(subscription.tables - declared)
        remedy = []
        if missing:
            remedy.append(f"add {', '.join(missing)}")
        if extra:
            remedy.append(f"remove {', '.join(extra)}")
        raise ConfigError(f"component {name}: subscriptions.yaml and the component disagree: {' and '.join(remedy)}")
