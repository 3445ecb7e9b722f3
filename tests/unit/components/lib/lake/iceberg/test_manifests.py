from __future__ import annotations

import pytest
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.typedef import Record

from components.lib.lake.iceberg.manifests import MAX_FILES, _cut, merge_groups, most_files


def entries(*partitions: int) -> list[ManifestEntry]:
    """Returns entries with that many files per partition."""
    return [
        ManifestEntry.from_args(data_file=DataFile.from_args(partition=Record(number)))
        for number, count in enumerate(partitions)
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("partitions", "least", "sizes"),
    [
        ([], 100, []),
        ([1], 100, [1]),
        ([250, 250, 250], 100, [250, 250, 250]),
        ([40, 40, 40, 40], 100, [120, 40]),
        ([2_500], 100, [MAX_FILES, MAX_FILES, 500]),
        ([400, 400, 400], MAX_FILES, [MAX_FILES, 200]),
    ],
)
def test_partitions_with_many_files_have_their_own_manifests(
    partitions: list[int], least: int, sizes: list[int]
) -> None:
    found = entries(*partitions)

    parts = list(_cut(found, least=least))

    assert [len(part) for part in parts] == sizes
    assert [entry for part in parts for entry in part] == found


def listed(number: int, files: int, spec_id: int = 0) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=f"m{number}",
        partition_spec_id=spec_id,
        content=ManifestContent.DATA,
        added_files_count=files,
        existing_files_count=0,
    )


def test_ten_manifests_of_one_size_class_are_merged() -> None:
    few = [listed(number, 3) for number in range(12)]
    others = [listed(number, 30) for number in range(20, 29)]

    assert list(merge_groups([*few, *others], MAX_FILES)) == [(0, few)]


def test_half_full_manifests_are_not_merged_until_manifests_may_be_larger() -> None:
    full = [listed(number, MAX_FILES) for number in range(25)]

    assert list(merge_groups(full, most_files(1_000_000))) == []
    assert list(merge_groups(full, most_files(3_000_000))) == [(0, full[:10])]
