"""The cache of metadata files, and metadata with referenced snapshots only."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from astha.subscribers.context import LakeSettings
from components.commands.catalog import metadata_files
from components.commands.catalog.errors import BadRequest, NoSuchFile, Unavailable
from components.commands.catalog.metadata_files import MetadataFiles, only_referenced_snapshots
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata
from components.lib.lake.storage.objects import Objects, StorageUnavailable


class CountingObjects(Objects):
    def __init__(self, lake: LakeSettings) -> None:
        super().__init__(lake)
        self.read: list[str] = []

    async def get(self, uri: str) -> bytes:
        name = uri.rpartition("/")[2]
        self.read.append(name)
        if name == "unreachable":
            raise StorageUnavailable("no answer")
        return await super().get(uri)


@pytest.fixture
def objects(tmp_path: Path) -> CountingObjects:
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 40)
    return CountingObjects(LakeSettings(warehouse=str(tmp_path)))


async def test_a_file_is_read_once_while_it_fits(objects: CountingObjects, tmp_path: Path) -> None:
    files = MetadataFiles(objects, 100)
    for name in "abacab":
        assert await files.read(f"file://{tmp_path}/{name}") == name.encode() * 40
    assert objects.read == ["a", "b", "c", "b"], "c takes the place of b, which was used longest ago"


async def test_without_a_cache_every_load_reads(objects: CountingObjects, tmp_path: Path) -> None:
    files = MetadataFiles(objects, 0)
    for _ in range(2):
        await files.read(f"file://{tmp_path}/a")
    assert objects.read == ["a", "a"]


async def test_a_compressed_file_is_sent_as_json(objects: CountingObjects, tmp_path: Path) -> None:
    (tmp_path / "v1.gz.metadata.json").write_bytes(gzip.compress(b"{}"))
    assert await MetadataFiles(objects, 100).read(f"file://{tmp_path}/v1.gz.metadata.json") == b"{}"


async def test_a_missing_file_is_a_missing_table_and_a_silent_storage_is_not(
    objects: CountingObjects, tmp_path: Path
) -> None:
    files = MetadataFiles(objects, 100)
    with pytest.raises(NoSuchFile):
        await files.read(f"file://{tmp_path}/missing")
    with pytest.raises(Unavailable, match="no answer"):
        await files.read(f"file://{tmp_path}/unreachable")


@pytest.mark.parametrize(
    ("metadata", "kept"),
    [
        ({"snapshots": [{"snapshot-id": 1}, {"snapshot-id": 2}], "refs": {"main": {"snapshot-id": 2}}}, [2]),
        ({"snapshots": [{"snapshot-id": 1}], "refs": {}}, []),
        ({"snapshots": [{"snapshot-id": 1}]}, []),
        ({"format-version": 2}, None),
    ],
)
def test_snapshots_without_a_reference_are_left_out(metadata: dict[str, object], kept: list[int] | None) -> None:
    found = msgspec.json.decode(only_referenced_snapshots(msgspec.json.encode(metadata)))
    assert {**found, "snapshots": None} == {**metadata, "snapshots": None}
    assert kept == (None if "snapshots" not in found else [one["snapshot-id"] for one in found["snapshots"]])


async def test_a_file_that_unzips_to_too_much_is_refused(
    objects: CountingObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_files, "_MAX_BYTES", 10_000)
    (tmp_path / "bomb.gz.metadata.json").write_bytes(gzip.compress(b" " * 20_000))
    (tmp_path / "none.gz.metadata.json").write_bytes(b"{}")
    files = MetadataFiles(objects, 1_000_000)
    for name in ("bomb", "none"):
        with pytest.raises(BadRequest):
            await files.read(f"file://{tmp_path}/{name}.gz.metadata.json")


async def test_parsed_files_are_bounded_by_their_bytes(
    objects: CountingObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def parse(data: bytes) -> bytes:
        parsed.append(data[:1])
        return data

    monkeypatch.setattr(IcebergMetadata, "parse", parse)
    files = MetadataFiles(objects, 250)  # two of 40 bytes, each counted three times
    for name in "abacab":
        await files.parsed(f"file://{tmp_path}/{name}")
    assert parsed == [b"a", b"b", b"c", b"b"]
