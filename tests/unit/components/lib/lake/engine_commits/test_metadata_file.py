from __future__ import annotations

import gzip

import pytest

from components.lib.lake.engine_commits import IcebergMetadata, InvalidCommit, metadata_file
from components.lib.lake.engine_commits.metadata_file import next_version
from tests.unit.components.lib.lake.engine_commits.requests import LOCATION, created


def test_the_first_and_the_next_file() -> None:
    first = metadata_file(created(), None)
    assert first.location.startswith(f"{LOCATION}/metadata/00000-")
    assert first.location.endswith(".metadata.json")
    assert first.content == first.json
    assert metadata_file(created(), first.location).location.startswith(f"{LOCATION}/metadata/00001-")
    assert metadata_file(created(), None).location != first.location


def test_compression_and_another_directory() -> None:
    properties = {"write.metadata.compression-codec": "GZIP", "write.metadata.path": "s3a://meta/orders/"}
    file = metadata_file(created(properties=properties), f"{LOCATION}/metadata/00041-x.gz.metadata.json")
    assert file.location.startswith("s3://meta/orders/00042-")
    assert file.location.endswith(".gz.metadata.json")
    assert gzip.decompress(file.content) == file.json
    assert IcebergMetadata.parse(file.json).properties["write.metadata.path"] == "s3a://meta/orders/"


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("/m/00007-a-b.metadata.json", 8),
        ("/m/v12.metadata.json", 13),
        ("/m/v12.gz.metadata.json", 13),
        ("/m/00003-a.metadata.json.gz", 4),
        ("/m/latest.metadata.json", 0),
        (None, 0),
    ],
)
def test_the_next_version(name: str | None, version: int) -> None:
    assert next_version(name) == version


def test_properties_that_cannot_be_met() -> None:
    with pytest.raises(InvalidCommit, match="zstd"):
        metadata_file(created(properties={"write.metadata.compression-codec": "zstd"}), None)
    with pytest.raises(InvalidCommit, match="gs://"):
        metadata_file(created(properties={"write.metadata.path": "gs://bucket/x"}), None)
