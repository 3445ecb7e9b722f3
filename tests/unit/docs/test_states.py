"""Every state that an operator can see is explained, in the runbook of states."""

from __future__ import annotations

import re
from typing import get_args

from astha.lanes.state import LaneState
from registry.models import CompactionStatus, SnapshotStatus
from tests.integration.astha.processes import ROOT

PAGE = (ROOT / "docs" / "operations" / "states.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def headings(title: str) -> set[str]:
    return set(re.findall(r"^### (.+)$", section(title), re.MULTILINE))


def rows(title: str) -> set[str]:
    return set(re.findall(r"^\| ([a-z]+) \|", section(title), re.MULTILINE)) - {"state"}


def test_each_state_of_a_component_has_a_section() -> None:
    assert headings("Of a component") == {str(state) for state in LaneState}


def test_each_role_of_a_daemon_has_a_section() -> None:
    assert headings("Of a daemon") == {"leading", "standing by", "waiting for the registry", "stopping", "Not ready"}


def test_each_state_of_a_compaction_and_of_a_snapshot_has_a_row() -> None:
    assert rows("Of a compaction") == set(get_args(CompactionStatus))
    assert rows("Of a snapshot") == set(get_args(SnapshotStatus))
