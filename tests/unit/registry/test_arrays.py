from __future__ import annotations

import pytest

from registry.json_text import JsonText
from registry.stores.postgres.arrays import array_literal


@pytest.mark.parametrize(
    ("values", "literal"),
    [
        ([], "{}"),
        ([1, -2, 2**63 - 1], "{1,-2,9223372036854775807}"),
        (["a", "", "NULL", "{}", "a,b", " "], '{"a","","NULL","{}","a,b"," "}'),
        (['q"', "b\\"], '{"q\\"","b\\\\"}'),
        ([None, "a", None], '{NULL,"a",NULL}'),
        ([None, 1], "{NULL,1}"),
        ([True, False, None], "{t,f,NULL}"),
        ([JsonText('{"a":1}')], '{"{\\"a\\":1}"}'),
    ],
)
def test_literals(values: list[object], literal: str) -> None:
    assert array_literal(values) == literal
