"""subscriptions.yaml: which component receives which tables.

components:
  iceberg_updater:
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
    lane: {delivery_timeout_s: 120}      # optional, see LanePolicy
    settings: {...}                      # optional, the component's own settings; see astha.settings.secret_files
  audit:
    use: acme.audit:create               # optional, a component from elsewhere: see astha.subscribers.loader
    tables: [tables]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from astha import strict_yaml
from astha.errors import ConfigError
from astha.settings.secret_files import with_component_secrets
from astha.subscribers.lane_policy import LanePolicy
from registry.schema import PUBLISHED_TABLES


class Subscription(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tables: frozenset[str] = Field(min_length=1)
    use: str | None = Field(
        None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="Module and function that create the component."
    )
    lane: LanePolicy = LanePolicy()
    settings: Mapping[str, Any] = Field(default_factory=dict)
    _line: int | None = PrivateAttr(None)

    @property
    def line(self) -> int | None:
        """The line in the file, for error messages."""
        return self._line


def read_subscriptions(path: Path) -> dict[str, Subscription]:
    """Returns subscriptions by component. Raises ConfigError that names file, line and remedy."""
    if not path.exists():
        raise ConfigError(
            f"{path}: no such file: list the components in it (docs/parts/daemon.md), "
            "or name another with --subscriptions"
        )
    try:
        return _parse(strict_yaml.read_text(path))
    except ConfigError as error:
        if str(error).startswith(str(path)):
            raise
        raise ConfigError(f"{path}: {error}") from error


def _parse(text: str) -> dict[str, Subscription]:
    document = strict_yaml.parse(text)
    content = document.content
    if not isinstance(content, dict) or set(content) != {"components"} or not isinstance(content["components"], dict):
        raise ConfigError(
            "line 1: expected one key `components`, with a mapping of component names below it; "
            "`components: {}` if there are none"
        )
    subscriptions = {}
    for name, entry in with_component_secrets(content["components"]).items():
        line = document.lines.get(("components", str(name)), 1)  # a key such as 0x10 has another text in `lines`
        if not isinstance(name, str) or not name.isidentifier():
            raise ConfigError(f"line {line}: {name!r} can't be a component's name: use letters, digits and _")
        if isinstance(entry, dict):
            _check_tables(name, entry.get("tables"), line)
        try:
            subscription = Subscription.model_validate(entry)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "entry"
            line = document.lines.get(("components", name, *map(str, first["loc"])), line)
            raise ConfigError(f"line {line}: component {name}: {where}: {first['msg']}") from error
        subscription._line = line
        subscriptions[name] = subscription
    return subscriptions


def _check_tables(name: str, tables: object, line: int) -> None:
    if not isinstance(tables, list):
        return  # pydantic's message is better
    unknown = [table for table in tables if not isinstance(table, str) or table not in PUBLISHED_TABLES]
    if unknown:
        raise ConfigError(
            f"line {line}: component {name} subscribes to {unknown[0]!r}, which the registry does not publish; "
            f"it publishes {', '.join(PUBLISHED_TABLES)}"
        )
    twice = {table for table in tables if tables.count(table) > 1}
    if twice:
        raise ConfigError(f"line {line}: component {name} names {sorted(twice)[0]!r} twice: remove one")


def require_match(name: str, subscription: Subscription, declared: frozenset[str]) -> None:
    """Raises ConfigError unless the file lists the tables that the component declares."""
    if subscription.tables != declared:
        missing, extra = sorted(declared - subscription.tables), sorted(subscription.tables - declared)
        remedy = []
        if missing:
            remedy.append(f"add {', '.join(missing)}")
        if extra:
            remedy.append(f"remove {', '.join(extra)}")
        raise ConfigError(f"component {name}: subscriptions.yaml and the component disagree: {' and '.join(remedy)}")
