from __future__ import annotations

import msgspec
import pytest

from registry.errors import Invalid
from registry.inputs import Fence, FileDraft, OffsetDraft, SegmentDraft, SnapshotDraft, TableDraft, validate
from tests.samples import TABLE, file, segment, snapshot


@pytest.mark.parametrize("kind", [SegmentDraft, Fence, OffsetDraft, TableDraft, FileDraft, SnapshotDraft])
def test_every_field_has_a_check(kind: type[SegmentDraft]) -> None:
    assert set(kind.checks) == set(kind.__struct_fields__)


def test_good_drafts_pass() -> None:
    validate([])
    validate([segment(0), segment(10)])
    validate([TABLE])
    validate([file("a"), file("b", partition="x=1/y=2")])
    validate([snapshot(1), snapshot(2, tag="v1")])
    validate([Fence("t", 0, "a", 1)])
    validate([OffsetDraft("t", 0, 1), OffsetDraft("t", 0, 1, "")])


def test_the_row_is_named_in_a_bulk_call() -> None:
    with pytest.raises(Invalid, match="base_offset of row 2"):
        validate([segment(0), segment(10), msgspec.structs.replace(segment(20), base_offset=-1)])


def test_a_segment_ends_at_or_after_its_base_offset() -> None:
    validate([segment(5, 5)])
    with pytest.raises(Invalid, match="below base_offset 5"):
        validate([segment(5, 4)])
    with pytest.raises(Invalid, match="next offset"):
        validate([segment(5, 2**63 - 1)])


def test_a_file_name_is_the_end_of_its_path() -> None:
    assert file("s3://bucket/a/b.parquet").file_name == "b.parquet"
    assert file("b.parquet").file_name == "b.parquet"
