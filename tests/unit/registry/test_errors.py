from __future__ import annotations

import inspect

import pytest

from registry import errors
from registry.errors import Conflict, Fenced, Invalid, RegistryError


def test_the_tree_drawn_in_the_docstring_is_the_tree() -> None:
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }
    assert set(kinds) == set(errors.__all__)
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in kinds)
    assert all(issubclass(kind, RegistryError) for kind in kinds.values())


def test_a_conflict_lists_names() -> None:
    assert Conflict("x", ["a", "b"]).names == ("a", "b")
    assert Conflict("x").names == ()
    assert isinstance(Fenced("x", ["t/0"]), Conflict)


@pytest.mark.parametrize("value", ["x" * 10_000, list(range(10_000)), {"a": "x" * 10_000}, 10**2_000, b"y" * 5_000])
def test_long_values_are_cut_in_the_message_not_in_the_error(value: object) -> None:
    error = Invalid("field", value, "is too long")
    assert len(str(error)) < 150
    assert str(error).startswith("field = ")
    assert str(error).endswith(": is too long")
    assert error.value is value
