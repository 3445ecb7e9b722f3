from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.compactor.planning.compaction_spec import halves
from registry.models import TableFile
from tests.parquet_files import as_row
from tests.samples import file


def files(*sizes: int) -> list[TableFile]:
    return [
        msgspec.structs.replace(as_row(file(f"file:///{number}")), file_size=size) for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "cut"), [([1] * 8, 4), ([1] * 3, 2), ([100, 1, 1, 1], 2), ([1, 1, 1, 100], 2), ([1, 1, 1, 1, 1], 3)]
)
def test_halves_by_size_of_at_least_two(sizes: list[int], cut: int) -> None:
    found = halves(files(*sizes))
    assert found is not None
    assert len(found[0]) == cut


def test_two_files_can_not_be_halved() -> None:
    assert halves(files(1, 1)) is None
    assert halves(files(1)) is None


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=50))
def test_nothing_is_lost_and_it_ends(sizes: list[int]) -> None:
    given_files = files(*sizes)
    found = halves(given_files)
    assert found is not None
    first, second = found
    assert [*first, *second] == given_files
    assert 2 <= len(first) < len(sizes)
