"""Commits of clients: what is too much for one of them."""

from __future__ import annotations

import json

import pytest

from components.lib.lake.engine_commits import InvalidCommit
from components.lib.lake.engine_commits.commit_request import CommitRequest, parse_transaction

UPDATE = {"action": "set-location", "location": "s3://lake/t"}


def commit(updates: int) -> dict[str, object]:
    return {"requirements": [], "updates": [UPDATE] * updates}


def test_a_commit_has_a_limited_number_of_updates() -> None:
    assert len(CommitRequest.parse(json.dumps(commit(2_000)).encode()).updates) == 2_000
    with pytest.raises(InvalidCommit, match=r"length <= 2000.*updates"):
        CommitRequest.parse(json.dumps(commit(2_001)).encode())


def test_a_transaction_has_a_limited_number_of_tables() -> None:
    changes = [commit(0) | {"identifier": {"namespace": ["a"], "name": str(number)}} for number in range(2_001)]
    with pytest.raises(InvalidCommit, match=r"length <= 2000.*table-changes"):
        parse_transaction(json.dumps({"table-changes": changes}).encode())
    assert len(parse_transaction(json.dumps({"table-changes": changes[1:]}).encode())) == 2_000
