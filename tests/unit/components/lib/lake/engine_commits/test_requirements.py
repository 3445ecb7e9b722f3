from __future__ import annotations

from typing import Any

import pytest

from components.lib.lake.engine_commits import CommitConflict, InvalidCommit
from tests.unit.components.lib.lake.engine_commits.requests import commit, created, with_snapshots

TABLE = with_snapshots(created(), 1)

MET: list[dict[str, Any]] = [
    {"type": "assert-table-uuid", "uuid": TABLE.table_uuid.upper()},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
    {"type": "assert-ref-snapshot-id", "ref": "audit", "snapshot-id": None},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 3},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
]

NOT_MET: list[tuple[dict[str, Any], str]] = [
    ({"type": "assert-create"}, "table already exists"),
    ({"type": "assert-table-uuid", "uuid": "0"}, "UUID does not match"),
    (
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2},
        "branch main has changed: expected id 2 != 1",
    ),
    ({"type": "assert-ref-snapshot-id", "ref": "main"}, "branch main was created concurrently"),
    ({"type": "assert-ref-snapshot-id", "ref": "v1", "snapshot-id": 1}, "branch or tag v1 is missing, expected 1"),
    ({"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2}, "field id changed: expected id 2 != 3"),
    ({"type": "assert-current-schema-id", "current-schema-id": 7}, "current schema changed: expected id 7 != 0"),
    ({"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1}, "partition id changed"),
    ({"type": "assert-default-spec-id", "default-spec-id": 1}, "default partition spec changed"),
    ({"type": "assert-default-sort-order-id", "default-sort-order-id": 1}, "default sort order changed"),
]


@pytest.mark.parametrize("requirement", MET, ids=lambda found: found["type"])
def test_met(requirement: dict[str, Any]) -> None:
    commit(requirements=[requirement]).check(TABLE)


@pytest.mark.parametrize(("requirement", "message"), NOT_MET, ids=lambda found: str(found)[:40])
def test_not_met(requirement: dict[str, Any], message: str) -> None:
    with pytest.raises(CommitConflict, match=message):
        commit(requirements=[requirement]).check(TABLE)


def test_a_creation_requires_only_that_there_is_no_table() -> None:
    request = commit(requirements=[{"type": "assert-create"}])
    assert request.creates
    request.check(None)
    assert not commit(requirements=MET).creates
    with pytest.raises(InvalidCommit, match="Invalid create requirements"):
        _ = commit(requirements=[{"type": "assert-create"}, MET[0]]).creates


def test_a_commit_to_a_missing_table_must_create_it() -> None:
    with pytest.raises(InvalidCommit, match="assert-create"):
        commit(requirements=[MET[0]]).check(None)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(InvalidCommit, match=r"assert-view-uuid.*requirements"):
        commit(requirements=[{"type": "assert-view-uuid", "uuid": "x"}])
    with pytest.raises(InvalidCommit, match=r"add-view-version.*updates"):
        commit({"action": "add-view-version"})
