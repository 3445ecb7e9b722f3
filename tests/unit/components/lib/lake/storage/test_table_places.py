"""Which table a file belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.lib.lake.storage.locations import BadLocation, parse_file
from components.lib.lake.storage.table_places import TablePlaces, own_files


@pytest.mark.parametrize(
    "spelling",
    ["s3://lake/b/x", "s3a://lake/b/x", "S3N://lake//b/x", "s3://lake/b/day=a%3Ab/x"],
)
def test_a_file_is_found_in_every_spelling(spelling: str) -> None:
    assert TablePlaces([("s3://lake/b", "b"), ("s3://lake/a", "a")]).owners(spelling) == ["b"]


def test_a_file_belongs_to_the_deepest_location() -> None:
    places = TablePlaces([("s3://lake/a", "outer"), ("s3://lake/a/b", "inner"), ("s3://lake/a/b", "too")])
    assert places.owners("s3://lake/a/x") == ["outer"]
    assert places.owners("s3://lake/a/b/x") == ["inner", "too"]
    assert places.owners("s3://lake/ab/x") == ()
    assert places.owners("gs://lake/a/x") == ()


def test_symbolic_links_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "a/link").symlink_to(tmp_path / "b")
    places = TablePlaces([(f"file://{tmp_path}/a", "a"), (f"file://{tmp_path}/b", "b")])
    assert places.owners(f"file:{tmp_path}/a/link/x") == ["b"]


@pytest.mark.parametrize("path", ["s3://lake/a/../b/x", "file:/lake/./x", "file://host/lake/x"])
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(BadLocation):
        parse_file(path)


@pytest.mark.parametrize("other", ["s3://meta/a", "s3://meta", "s3://meta/a/b"])
def test_a_directory_that_another_table_shares_does_not_count(other: str) -> None:
    paths = ["s3://lake/a/x", "s3://meta/a/y", "s3://lake/b/z"]
    assert own_files(paths, location="s3://lake/a", directory="s3://meta/a") == paths[:2]
    assert own_files(paths, location="s3://lake/a", directory="s3://meta/a", others=[other]) == paths[:1]
    assert own_files(paths, location="s3://lake", others=["s3://lake/b"]) == paths[:1]
