"""The dashboards of deploy/monitoring, and the metrics that expressions name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
DASHBOARDS = sorted((ROOT / "deploy/monitoring/dashboards").glob("*.json"))

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME_PATTERN = re.compile(r'__name__=~"([^"]+)"')
_NAME = re.compile(r"(?<![\w:])(?:up|(?:astha|process|node|group|component)[_:][\w:]+)(?![\w:]*\s*\()")


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def panels(path: Path) -> list[dict[str, Any]]:
    """All panels but the titles of rows."""
    return [panel for panel in load(path)["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Pairs of a panel's name and an expression, with Grafana's variables replaced as Grafana does for `All`."""
    for path in DASHBOARDS:
        for panel in panels(path):
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", substituted(target["expr"])


def substituted(expression: str) -> str:
    return re.sub(r"\$(?:group|instance|component)\b", ".*", expression).replace("$__rate_interval", "1m")


def metrics_of(expression: str) -> set[str]:
    """The names of metrics in an expression."""
    return set(_NAME.findall(_STRING.sub('""', expression)))


def name_patterns_of(expression: str) -> set[str]:
    """Patterns that select metrics by name."""
    return set(_NAME_PATTERN.findall(expression))
