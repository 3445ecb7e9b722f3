"""Types and terms that are meant to break the parser."""

from __future__ import annotations

import pytest

from components.lib.lake.schema.table_definition import parse_definition
from components.lib.lake.schema.type_syntax import SyntaxProblem


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("list<" * 2_000 + "int" + ">" * 2_000, "types are nested deeper than 50"),
        ("struct<a: " * 2_000 + "int" + ">" * 2_000, "types are nested deeper than 50"),
        (f"decimal({'9' * 5_000},2)", "is too large"),
        (f"decimal(9,{'9' * 5_000})", "is too large"),
        (f"fixed({'9' * 5_000})", "is too large"),
        ("fixed(99999999999)", "is too large"),
        ("fixed(2147483648)", "less than 2 GiB"),
    ],
)
def test_a_type_out_of_bounds_is_refused(kind: str, why: str) -> None:
    with pytest.raises(SyntaxProblem, match=why):
        parse_definition({"columns": {"id": kind}}).schema()


@pytest.mark.parametrize("key", ["partition_by", "sort_by"])
@pytest.mark.parametrize(
    "term", [f"bucket({'9' * 5_000}, id)", "x" + " " * 20_000 + "y", "bucket(" + "9" * 100 + ", id)"]
)
def test_a_term_out_of_bounds_is_refused(key: str, term: str) -> None:
    with pytest.raises(SyntaxProblem, match=r"characters, the most is|must be between"):
        parse_definition({"columns": {"id": "long"}, key: [term]}).schema()
