from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from components.lib.lake.storage.locations import (
    BadLocation,
    Location,
    canonical,
    file_location,
    join,
    parse,
    slug,
    table_location,
)


@pytest.mark.parametrize(
    ("written", "uri"),
    [
        ("/data/lake", "file:///data/lake"),
        ("/data//lake/./a/../b/", "file:///data/lake/b"),
        ("//data", "file:///data"),
        ("file:/data", "file:///data"),
        ("file:///data/", "file:///data"),
        ("file://localhost/data", "file:///data"),
        ("FILE:///data", "file:///data"),
        ("lake", "file:///srv/lake"),
        ("/with space/ünï", "file:///with space/ünï"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3a://bucket//a/b/", "s3://bucket/a/b"),
        ("S3://bucket/Key=1", "s3://bucket/Key=1"),
    ],
)
def test_one_uri_for_all_spellings(written: str, uri: str) -> None:
    assert canonical(written, base=Path("/srv")) == uri
    assert canonical(uri) == uri
    assert parse(uri).uri == uri


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "empty"),
        ("hdfs://a/b", "only local paths"),
        ("s3://B/x", "not a bucket"),
        ("s3:///x", "not a bucket"),
        ("s3://bucket/a/../b", "mean nothing in an S3 key"),
        ("file://elsewhere/x", "names the host"),
        ("file:x", "relative"),
        ("/a%20b", "'%'"),
        ("/a?b", r"'\?'"),
        ("/a#b", "'#'"),
        ("s3://bucket/a*b", r"'\*'"),
        ("/a\nb", "control"),
    ],
)
def test_characters_that_readers_interpret_are_refused(written: str, why: str) -> None:
    with pytest.raises(BadLocation, match=why):
        canonical(written)


@pytest.mark.parametrize("uri", ["/data", "data", "file:data", "file://host/data", "http://x"])
def test_only_canonical_uris_are_parsed(uri: str) -> None:
    with pytest.raises(BadLocation, match="is not a location"):
        parse(uri)


def test_parts() -> None:
    assert parse("s3://bucket/a/b") == Location("s3", "bucket", "a/b")
    assert parse("file:///a/b").path == Path("/a/b")
    assert parse("file:/a/b").uri == "file:///a/b"
    assert parse("s3a://bucket/a/b").uri == "s3://bucket/a/b"
    with pytest.raises(BadLocation, match="not on local disk"):
        _ = parse("s3://bucket/a").path
    assert join("file:///a/", "/b/", "", "c") == "file:///a/b/c"


def test_file_names_are_unique_and_literal() -> None:
    path = "ts_day=2024-05-01/name=a%2Fb%3D%E2%82%AC"
    first, second = (file_location("file:///t", path, ".parquet", 1_700_000_000_123) for _ in range(2))
    assert first != second
    assert first.startswith("file:///t/data/ts_day-2024-05-01/name-a-2Fb-3D-E2-82-AC/20231114T221320123-")
    assert PyArrowFileIO.parse_location(first)[2] == str(parse(first).path)
    assert canonical(first) == first


def test_names_sort_by_time() -> None:
    names = [file_location("s3://b/t", "", ".parquet", ms) for ms in (999, 1_000, 1_700_000_000_000, 1_700_000_000_001)]
    assert names == sorted(names)


def test_tables_never_share_a_location() -> None:
    names = ["orders", "a b", "a-b", "a/b", "..", "", "ü" * 200, "ü" * 201]
    places = [table_location("s3://lake/w", "db", name) for name in names]
    assert len(set(places)) == len(names)
    assert places[0] == "s3://lake/w/db/orders"
    assert all(canonical(place) == place for place in places)


def test_slugs() -> None:
    assert slug("a=b c/d") == "a-b-c-d"
    assert slug("...") == "-"


@pytest.mark.parametrize("name", ["foo!", "foo", "Foo", "ünï", "a" * 100, "foo-c0e0aaae", "-", "."])
def test_no_other_name_has_the_same_default_location(name: str) -> None:
    """Not even a name that looks like the first one's location."""
    place = table_location("/w", "db", name)
    taken = place.rpartition("/")[2]
    assert taken == name or table_location("/w", "db", taken) != place
