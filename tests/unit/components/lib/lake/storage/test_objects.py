from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path

import pytest

from astha.subscribers.context import LakeSettings, S3Settings
from components.lib.lake.storage.objects import (
    DeletionRefused,
    ObjectMissing,
    Objects,
    StorageRefused,
    StorageUnavailable,
)
from components.lib.lake.storage.output_streams import ChecksummedSink, Sink, checksum_of


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(LakeSettings(warehouse=str(tmp_path)), timeout_s=1, retry_s=0)


def uri(path: Path) -> str:
    return f"file://{path}"


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


async def test_many_objects_come_in_their_order_and_a_missing_one_is_named(objects: Objects, tmp_path: Path) -> None:
    places = [uri(tmp_path / f"{number}.bin") for number in range(3)]
    for number, place in enumerate(places):
        await objects.put(place, bytes([number]))
    assert await objects.get_many(places[::-1]) == [b"\2", b"\1", b"\0"]
    with pytest.raises(ObjectMissing, match=r"missing\.bin"):
        await objects.get_many([places[0], uri(tmp_path / "missing.bin")])


async def test_whole_objects_and_ranges(objects: Objects, tmp_path: Path) -> None:
    place = uri(tmp_path / "a/b/c.bin")
    await objects.put(place, b"0123456789")
    assert await objects.get(place) == b"0123456789"
    assert await objects.get_range(place, 2, 3) == b"234"
    assert await objects.get_range(place, 8, 5) == b"89"
    assert await objects.size(place) == 10
    await objects.put(place, b"x")
    assert await objects.get(place) == b"x"
    await objects.delete_many([place, uri(tmp_path / "never")])
    assert not await objects.exists(place)
    with pytest.raises(ObjectMissing, match=r"c\.bin does not exist"):
        await objects.get(place)


async def test_a_failing_writer_leaves_nothing(objects: Objects, tmp_path: Path) -> None:
    def fill(sink: Sink) -> None:
        sink.write(b"half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await objects.write(uri(tmp_path / "f"), fill)
    assert files(tmp_path) == []


async def test_an_object_is_not_visible_before_it_is_complete(objects: Objects, tmp_path: Path) -> None:
    seen: list[bool] = []

    def fill(sink: Sink) -> int:
        sink.write(b"half")
        seen.append((tmp_path / "f").exists())
        return 7

    assert await objects.write(uri(tmp_path / "f"), fill) == 7
    assert seen == [False]
    assert files(tmp_path) == ["f"]


async def test_a_cancelled_write_never_appears(objects: Objects, tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fill(sink: Sink) -> None:
        sink.write(b"half")
        begun.set()
        go_on.wait(30)

    task = asyncio.create_task(objects.write(uri(tmp_path / "f"), fill))
    await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()  # it waits for its thread
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert files(tmp_path) == []


async def test_leftovers_of_a_killed_writer_are_deleted_with_the_object(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "f.partial").write_bytes(b"half")
    await objects.delete_many([uri(tmp_path / "f")])
    assert files(tmp_path) == []


async def test_nothing_is_deleted_if_one_path_is_refused(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "ours").write_bytes(b"x")
    for other in ("file:///etc/astha-has-no-business-here", uri(tmp_path / "a/../../b"), "s3://bucket/x", "x"):
        with pytest.raises(DeletionRefused, match="1 of 2 files: none deleted"):
            await objects.delete_many([uri(tmp_path / "ours"), other])
    assert files(tmp_path) == ["ours"]
    elsewhere = Objects(LakeSettings(warehouse="elsewhere", roots=(str(tmp_path),)))
    await elsewhere.delete_many([uri(tmp_path / "ours")])
    assert files(tmp_path) == []


async def test_a_disk_that_refuses_writes(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageRefused, match="check the disk"):
        await objects.put(uri(tmp_path / "file/below"), b"")


async def test_an_unreachable_storage_is_unavailable() -> None:
    s3 = S3Settings.model_validate(
        {"endpoint": "http://127.0.0.1:1", "allow_http": True, "access_key": "a", "secret_key": "b"}
    )
    objects = Objects(LakeSettings(s3=s3), timeout_s=1, retry_s=0)
    with pytest.raises(StorageUnavailable, match=r"s3://bucket/key: .*: is lake\.s3\.endpoint reachable"):
        await objects.put("s3://bucket/key", b"x")


def test_a_checksummed_sink_counts_and_hashes() -> None:
    passed: list[bytes] = []
    tally = ChecksummedSink(Sink(lambda data: passed.append(data) or len(data)))  # type: ignore[func-returns-value]
    tally.write(b"ab")
    tally.write(b"c")
    assert (tally.size, tally.checksum, passed) == (3, checksum_of(b"abc"), [b"ab", b"c"])


@pytest.mark.parametrize("modes", [(0o600, 0o700), (0o640, 0o750)])
async def test_files_and_directories_have_the_lakes_modes(tmp_path: Path, modes: tuple[int, int]) -> None:
    lake = LakeSettings(file_mode=f"{modes[0]:04o}", directory_mode=f"{modes[1]:04o}")
    existing = tmp_path / "existing"
    existing.mkdir()
    existing.chmod(0o755)
    await Objects(lake if modes != (0o600, 0o700) else LakeSettings()).put(uri(existing / "a/b/c.bin"), b"x")
    found = [stat.S_IMODE(path.stat().st_mode) for path in (existing / "a/b/c.bin", existing / "a/b", existing / "a")]
    assert found == [modes[0], modes[1], modes[1]]
    assert stat.S_IMODE(existing.stat().st_mode) == 0o755
