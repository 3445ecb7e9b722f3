"""The rule files of deploy/monitoring, their tests, and promtool."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.servers.packages import find_program

ROOT = Path(__file__).parents[3]
RULES = sorted((ROOT / "deploy/monitoring/rules").glob("*.yaml"))
RULE_TESTS = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
_LIMIT_S = 120


def promtool(*arguments: str | Path) -> None:
    """Fails with the output of promtool if it finds a fault."""
    program = find_program("promtool", "prometheus")
    done = subprocess.run(
        [program.path, *arguments], env={**os.environ, **program.environment},
        capture_output=True, text=True, check=False, timeout=_LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def rules_in(path: Path) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(path.read_text())["groups"]:
        yield from group["rules"]


def alerts() -> list[dict[str, Any]]:
    return [rule for path in RULES for rule in rules_in(path) if "alert" in rule]


def recorded() -> set[str]:
    return {rule["record"] for path in RULES for rule in rules_in(path) if "record" in rule}


def expressions() -> list[str]:
    return [rule["expr"] for path in RULES for rule in rules_in(path)]
