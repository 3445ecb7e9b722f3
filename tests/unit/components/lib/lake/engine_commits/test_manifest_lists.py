from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
    read_manifest_list,
    write_manifest_list,
)

from components.lib.lake.engine_commits import manifest_lists
from components.lib.lake.engine_commits.manifest_lists import ListedManifest, ManifestLists


@pytest.fixture
def io() -> FileIO:
    return PyArrowFileIO()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The records that were decoded, and not taken from an earlier list."""
    found: list[object] = []
    make = manifest_lists._manifest

    def counted(values: dict[int | str, object]) -> ListedManifest:
        found.append(values[500])
        return make(values)

    monkeypatch.setattr(manifest_lists, "_manifest", counted)
    return found


def manifest(number: int, *, files: int = 1) -> ManifestFile:
    partition = PartitionFieldSummary(False, None, b"a" * (number % 5), None) if number % 2 else None
    return ManifestFile.from_args(
        manifest_path=f"s3://b/m{number}.avro", manifest_length=7000 + number, partition_spec_id=number % 3,
        content=ManifestContent.DATA, sequence_number=number, min_sequence_number=1, added_snapshot_id=900 + number,
        added_files_count=files, existing_files_count=0, deleted_files_count=1, added_rows_count=10,
        existing_rows_count=0, deleted_rows_count=0, partitions=None if partition is None else [partition],
    )  # fmt: skip


def written(io: FileIO, directory: Path, name: str, manifests: list[ManifestFile], **options: object) -> str:
    path = f"{directory.as_uri()}/{name}.avro"
    codec = options.get("codec", "deflate")
    version = options.get("version", 2)
    with write_manifest_list(version, io.new_output(path), 1, None, 5, codec) as writer:  # type: ignore[arg-type]
        writer.add_manifests(manifests)
    return path


def expected(io: FileIO, location: str) -> list[ListedManifest]:
    return [
        ListedManifest(
            found.manifest_path,
            found.partition_spec_id,
            found.sequence_number,
            found.added_snapshot_id,
            found.has_added_files() or found.has_existing_files(),
        )
        for found in read_manifest_list(io.new_input(location))
    ]


@pytest.mark.parametrize("codec", ["deflate", "null", "zstandard"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_list_is_read_as_pyiceberg_reads_it(io: FileIO, tmp_path: Path, codec: str, version: int) -> None:
    made = [manifest(number, files=number % 2) for number in range(1, 8)]
    location = written(io, tmp_path, "list", made, codec=codec, version=version)
    assert list(ManifestLists().read(io, location).values()) == expected(io, location)


def test_a_longer_list_is_decoded_where_it_differs(io: FileIO, tmp_path: Path, decoded: list[object]) -> None:
    old = [manifest(number) for number in range(1, 50)]
    first = written(io, tmp_path, "first", old)
    second = written(io, tmp_path, "second", [manifest(80), manifest(81), *old])
    lists = ManifestLists()
    lists.read(io, first)
    decoded.clear()
    assert list(lists.read(io, second, first).values()) == expected(io, second)
    assert decoded == ["s3://b/m80.avro", "s3://b/m81.avro"]
    third = written(io, tmp_path, "third", [manifest(90), manifest(80), *old[7:]])
    decoded.clear()
    assert list(lists.read(io, third, second).values()) == expected(io, third)
    assert decoded == ["s3://b/m90.avro", "s3://b/m80.avro"]


def test_lists_of_different_writers(io: FileIO, tmp_path: Path) -> None:
    made = [manifest(number) for number in range(1, 9)]
    first = written(io, tmp_path, "first", made, version=1)
    second = written(io, tmp_path, "second", [manifest(10), *made], version=2)
    lists = ManifestLists()
    lists.read(io, first)
    assert list(lists.read(io, second, first).values()) == expected(io, second)


def test_random_lists(io: FileIO, tmp_path: Path) -> None:
    random, lists = Random(4), ManifestLists(max_manifests=30)
    current: list[ManifestFile] = []
    previous = None
    for number in range(40):
        current = [made for made in current if random.random() > random.choice([0, 0, 0.2])]
        current.insert(random.choice([0, 0, len(current)]), manifest(number + 1))
        location = written(io, tmp_path, f"list-{number}", current)
        assert list(lists.read(io, location, previous).values()) == expected(io, location)
        previous = location


def test_a_damaged_list(io: FileIO, tmp_path: Path) -> None:
    location = written(io, tmp_path, "list", [manifest(number) for number in range(1, 20)], codec="null")
    path = Path(location.removeprefix("file://"))
    content = path.read_bytes()
    random = Random(7)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[random.randrange(len(content))] = random.randrange(256)
        path.write_bytes(damaged[: random.randrange(1, len(content) + 1)])
        try:
            ManifestLists().read(io, location)
        except (ValueError, IndexError, KeyError, TypeError):
            continue
