from __future__ import annotations

import pytest

from components.lib.change_formats import database_name
from registry.position import Position, SequenceVisibility, SnapshotVisibility, XidVisibility

SEQUENCE = SequenceVisibility(Position(1))


@pytest.mark.parametrize(
    ("visibility", "url", "name"),
    [
        (XidVisibility.parse("1:2:"), "postgresql://db/registry", "postgresql"),
        (SEQUENCE, "sqlite:///registry.db", "sqlite"),
        (SEQUENCE, "dynamodb://eu-central-1/astha", "dynamodb"),
        (SEQUENCE, "", "sqlite"),
    ],
)
def test_a_change_names_the_database_that_it_comes_from(visibility: SnapshotVisibility, url: str, name: str) -> None:
    assert database_name(visibility, url) == name
