from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.lib.lake.file_set_digest import Digest, LiveFile
from registry.inputs import FileDraft
from tests.parquet_files import as_row

files = st.builds(
    LiveFile,
    path=st.text(st.characters(exclude_characters="\0", codec="utf-8")),
    rows=st.integers(0, 2**63 - 1),
    size_bytes=st.integers(0, 2**63 - 1),
    partition_path=st.text(st.characters(exclude_characters="\0", codec="utf-8")),
)


def digest_of(given: list[LiveFile]) -> Digest:
    digest = Digest()
    for file in given:
        digest.add(file)
    return digest


@given(st.lists(files), st.randoms())
def test_order_does_not_matter(given: list[LiveFile], random: object) -> None:
    shuffled = list(given)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert digest_of(given) == digest_of(shuffled)


@given(st.lists(files), st.lists(files))
def test_removing_is_the_inverse_of_adding(kept: list[LiveFile], passing: list[LiveFile]) -> None:
    digest = digest_of(kept + passing)
    for file in passing:
        digest.remove(file)
    assert digest == digest_of(kept)


@given(st.sets(files), st.sets(files))
def test_different_sets_have_different_digests(left: set[LiveFile], right: set[LiveFile]) -> None:
    assert (digest_of(list(left)) == digest_of(list(right))) == (left == right)


@given(st.lists(files))
def test_text_is_read_back(given: list[LiveFile]) -> None:
    digest = digest_of(given)
    assert Digest.parse(str(digest), digest.files) == digest
    assert len(str(digest)) == 64


def test_a_copy_is_independent() -> None:
    file = LiveFile("file:///a", 1, 2)
    digest = digest_of([file])
    copy = digest.copy()
    copy.remove(file)
    assert copy == Digest()
    assert digest.files == 1


@pytest.mark.parametrize(("text", "count"), [("", 0), ("ab", 1), ("x" * 64, 1), ("0" * 64, -1)])
def test_invalid_digests_are_refused(text: str, count: int) -> None:
    with pytest.raises(ValueError, match=r"digest|literal"):
        Digest.parse(text, count)


def test_of_a_row() -> None:
    draft = FileDraft(file_path="s3://b/k", file_size=9, row_count=3, schema_version=1, partition_path="day=1")
    assert LiveFile.of(as_row(draft)) == LiveFile("s3://b/k", 3, 9, "day=1")
