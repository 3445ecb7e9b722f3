from __future__ import annotations

import pytest
from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.typedef import Record

from components.lib.lake.iceberg.manifests import MAX_FILES, _cut


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
