from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
    read_manifest_list,
    write_manifest_list,
)

from components.lib.lake.iceberg import manifest_lists
from components.lib.lake.iceberg.manifest_lists import DroppedManifests, KnownManifests, ManifestLists

IO = PyArrowFileIO()


def manifest(number: int) -> ManifestFile:
    summaries = [
        PartitionFieldSummary(number % 2 == 0, None, b"\x00\x01", None),
        PartitionFieldSummary(False, True, None, b"x" * number),
    ]
    return ManifestFile.from_args(
        manifest_path=f"file:///lake/t/metadata/{number}-m0.avro",
        manifest_length=4_000 + number,
        partition_spec_id=number % 3,
        content=ManifestContent.DELETES if number % 7 == 0 else ManifestContent.DATA,
        sequence_number=number,
        min_sequence_number=number // 2,
        added_snapshot_id=2**62 + number,
        added_files_count=number,
        existing_files_count=0,
        deleted_files_count=1,
        added_rows_count=10 * number,
        existing_rows_count=0,
        deleted_rows_count=2**40,
        partitions=None if number % 5 == 0 else summaries,
        key_metadata=b"key" if number % 4 == 0 else None,
    )


def listed(path: Path) -> list[ManifestFile]:
    return list(read_manifest_list(IO.new_input(str(path))))


@pytest.mark.parametrize("count", [0, 1, 200])
def test_a_list_is_read_as_pyiceberg_would_have_written_it(tmp_path: Path, count: int) -> None:
    manifests = [manifest(number) for number in range(1, count + 1)]
    with write_manifest_list(2, IO.new_output(str(tmp_path / "theirs")), 7, 6, 300, "deflate") as writer:
        writer.add_manifests(manifests)

    ManifestLists().write(IO, str(tmp_path / "ours"), manifests, 7, 6, 300)

    assert listed(tmp_path / "ours") == listed(tmp_path / "theirs") == manifests
    header = slice(0, (tmp_path / "ours").read_bytes().index(b"avro.codec"))
    assert (tmp_path / "ours").read_bytes()[header] == (tmp_path / "theirs").read_bytes()[header]


def test_a_commit_encodes_only_the_blocks_that_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode = manifest_lists._encoded

    def counted(block: list[ManifestFile]) -> bytes:
        encoded.append(len(block))
        return encode(block)

    monkeypatch.setattr(manifest_lists, "_encoded", counted)
    lists = ManifestLists()
    before = [manifest(number) for number in range(1, 1_001)]
    lists.write(IO, str(tmp_path / "1"), before, 1, None, 1)
    assert sum(encoded) == 1_000
    encoded.clear()

    after = [manifest(2_000), *before[:500], *before[501:]]
    lists.write(IO, str(tmp_path / "2"), after, 2, 1, 2)

    assert len(encoded) <= 3
    assert listed(tmp_path / "2") == after


def test_dropped_manifests_are_those_of_the_parent_that_are_gone() -> None:
    before = [manifest(1), manifest(2), manifest(3)]

    found = DroppedManifests.between(9, before, [manifest(4), before[1]])

    assert found == DroppedManifests(9, ((before[0].manifest_path, 1), (before[2].manifest_path, 3)))


def test_manifests_are_known_of_the_last_committed_snapshot_only() -> None:
    known = KnownManifests()
    assert known.of(None) is None
    known.committed(5, [manifest(1)], {5: DroppedManifests(4, ())}, [4])
    known.committed(6, [manifest(2)], {6: DroppedManifests(5, ())}, [5])
    known.committed(6, [manifest(2)], {}, [6])

    assert known.of(6) == [manifest(2)]
    assert known.of(5) is None
    assert known.dropped.keys() == {5, 6}

    known.committed(7, [], {7: DroppedManifests(6, ())}, [6])
    assert known.dropped.keys() == {6, 7}
