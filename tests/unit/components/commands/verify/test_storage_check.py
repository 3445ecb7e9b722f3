from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from components.commands.verify.report import DifferenceKind
from components.commands.verify.storage_check import StorageCheck, StorageCheckResult
from components.lib.lake.storage.objects import StorageUnavailable
from components.lib.lake.storage.output_streams import checksum_of
from registry.inputs import FileDraft
from registry.models import LakeTable, TableDeleteFile, TableFile
from tests.parquet_files import as_row

TABLE = LakeTable(1, "shop", "orders", "s3://b/t", 0, 0, 0, 0, "active", 0, 0)


def registered(name: str, content: bytes, checksum: str | None = "") -> TableFile:
    draft = FileDraft(
        file_path=f"s3://b/t/{name}",
        file_size=len(content),
        row_count=1,
        schema_version=1,
        checksum=checksum_of(content) if checksum == "" else checksum,
    )
    return as_row(draft, file_id=hash(name) % 1_000)


class Registry:
    def __init__(self, *files: TableFile) -> None:
        self.files = list(files)
        self.gone: set[str] = set()

    async def stream_files(self, table_id: int) -> AsyncIterator[TableFile]:
        for file in self.files:
            yield file

    async def get_files(self, table_id: int, paths: Sequence[str]) -> list[TableFile]:
        return [file for file in self.files if file.file_path in paths and file.file_path not in self.gone]

    async def list_delete_files(self, table_id: int, *, after: int = 0) -> list[TableDeleteFile]:
        return []


class Bucket:
    def __init__(self, **objects: bytes) -> None:
        self.objects = {f"s3://b/t/{name}": content for name, content in objects.items()}
        self.reading = self.most = 0
        self.down = False

    async def size(self, uri: str) -> int | None:
        if self.down:
            raise StorageUnavailable(f"{uri}: no answer")
        return len(self.objects[uri]) if uri in self.objects else None

    async def get_range(self, uri: str, start: int, length: int) -> bytes:
        self.reading += 1
        self.most = max(self.most, self.reading)
        content = self.objects[uri][start : start + length]
        self.reading -= 1
        return content


async def check(registry: Registry, bucket: Bucket, *, checksums: bool = True, parallel: int = 2) -> StorageCheckResult:
    seen: list[int] = []
    run = StorageCheck(cast("Any", registry), bucket, checksums=checksums, parallel=parallel)
    stored = await run.run(TABLE, len(registry.files), lambda _table, done, _total: seen.append(done))
    assert seen == list(range(1, len(registry.files) + 1))
    return stored


async def test_files_as_registered() -> None:
    names = [f"f{number}" for number in range(50)]
    registry = Registry(*(registered(name, name.encode()) for name in names))
    bucket = Bucket(**{name: name.encode() for name in names})
    stored = await check(registry, bucket)
    assert (stored.found, stored.checked, stored.bytes_read) == ({}, 50, sum(map(len, names)))


async def test_missing_truncated_and_changed_files() -> None:
    registry = Registry(*(registered(name, b"content") for name in ("good", "gone", "short", "other")))
    bucket = Bucket(good=b"content", short=b"con", other=b"c0ntent")
    stored = await check(registry, bucket)
    assert stored.found[DifferenceKind.FILE_MISSING] == ["s3://b/t/gone"]
    assert stored.found[DifferenceKind.FILE_SIZE] == ["s3://b/t/short: 3 bytes, registered with 7"]
    assert stored.found[DifferenceKind.CHECKSUM][0].startswith("s3://b/t/other: sha256:")
    without = await check(registry, bucket, checksums=False)
    assert set(without.found) == {DifferenceKind.FILE_MISSING, DifferenceKind.FILE_SIZE}
    assert without.bytes_read == 0


async def test_a_file_that_is_no_longer_registered_is_no_difference() -> None:
    registry = Registry(registered("gone", b"content"))
    registry.gone.add("s3://b/t/gone")
    assert (await check(registry, Bucket())).found == {}


async def test_files_without_a_known_checksum_are_counted() -> None:
    registry = Registry(registered("none", b"x", None), registered("other", b"x", "crc32:00"))
    stored = await check(registry, Bucket(none=b"x", other=b"x"))
    assert (stored.found, stored.without_checksum) == ({}, 2)


async def test_storage_that_does_not_answer_is_no_difference() -> None:
    bucket = Bucket()
    bucket.down = True
    with pytest.raises(StorageUnavailable, match="no answer"):
        await check(Registry(registered("a", b"x")), bucket)
