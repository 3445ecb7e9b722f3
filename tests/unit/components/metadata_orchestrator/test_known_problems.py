from __future__ import annotations

from structlog.testing import capture_logs

from components.metadata_orchestrator.known_problems import KnownProblems
from registry.models import LakeTable


def table(number: int) -> LakeTable:
    return LakeTable(number, "db", f"t{number}", "file:///t", 0, 0, 0, 0, "active", 0, 0)


def test_a_problem_is_logged_when_found_and_when_solved() -> None:
    problems = KnownProblems()
    with capture_logs() as logs:
        problems.found(table(1), "location", "full", 5)
        problems.found(table(1), "location", "full", 6)
        problems.solved(1, ["location", "schema version 1"])
        problems.solved(1, ["location"])
    assert [(entry["log_level"], entry["table"]) for entry in logs] == [("warning", "db.t1"), ("info", "db.t1")]
    assert problems.listed() == []
    assert problems.reported == 1


def test_a_changed_problem_is_reported_again_and_keeps_its_age() -> None:
    problems = KnownProblems()
    problems.found(table(1), "location", "full", 5)
    problems.found(table(2), "location", "full", 4)
    problems.found(table(1), "location", "read-only", 9)
    assert [(problem.table, problem.text, problem.since) for problem in problems.listed()] == [
        ("db.t2", "full", 4),
        ("db.t1", "read-only", 5),
    ]
    assert problems.reported == 3


def test_problems_are_forgotten_with_their_table() -> None:
    problems = KnownProblems()
    for subject in ("location", "schema version 2"):
        problems.found(table(1), subject, "bad", 0)
        problems.found(table(2), subject, "bad", 0)
    problems.forget(1)
    assert problems.tables() == {2}
    assert problems.subjects(2) == {"location", "schema version 2"}
