from __future__ import annotations

import pytest

from components.commands.parameters import SizeParam
from components.lib.lake.table_properties import PolicyProblem, count, duration_ms, flag, read_properties, size_bytes


def test_properties_of_one_prefix_are_read() -> None:
    known = {"size": ("size", size_bytes), "for": ("for_ms", duration_ms), "on": ("on", flag), "n": ("n", count)}
    given = {"a.size": "2KiB", "a.for": "3 m", "a.on": "True", "b.size": "?", "a.n": None, "other": 1}
    assert read_properties(given, "a.", known) == {"size": 2_048, "for_ms": 180_000, "on": True}
    assert read_properties([], "a.", known) == {}
    with pytest.raises(PolicyProblem, match=r"a\.none: there is no such property; known are a\.size, a\.for"):
        read_properties({"a.none": 1}, "a.", known)


@pytest.mark.parametrize("text", ["\u0663m", "1.5h", "h", "", "3 fortnights"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(PolicyProblem, match="write a duration"):
        duration_ms("x", text)


@pytest.mark.parametrize(
    ("text", "size"), [("10MB", 10_000_000), ("10MiB", 10 << 20), ("10m", 10 << 20), ("7", 7), ("1 TB", 10**12)]
)
def test_a_size_means_the_same_in_a_property_and_in_an_option(text: str, size: int) -> None:
    assert size_bytes("x", text) == SizeParam().convert(text, None, None) == size
