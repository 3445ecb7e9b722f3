"""Objects on a real S3 server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr

from astha.subscribers.context import LakeSettings
from components.lib.lake.storage.locations import join
from components.lib.lake.storage.objects import ObjectMissing, Objects, StorageRefused, StorageUnavailable
from components.lib.lake.storage.output_streams import Sink
from tests.servers.s3 import S3Server


async def test_whole_objects_ranges_and_deletion(s3_lake: LakeSettings) -> None:
    objects = Objects(s3_lake)
    small, large, odd, never = (join(s3_lake.warehouse, name) for name in ("small", "large", "a b=ü+c", "never"))
    for place, data in ((small, b"0123456789"), (large, bytes(range(256)) * 90_000), (odd, b"")):
        await objects.put(place, data)
        assert await objects.size(place) == len(data)
        assert await objects.get(place) == data
    assert await objects.get_range(small, 2, 3) == b"234"
    assert await objects.get_range(small, 8, 5) == b"89"
    assert await objects.get_range(small, 8, 0) == b""
    await objects.delete_many([small, never, large, odd])
    for place in (small, large, odd):
        assert not await objects.exists(place)
    with pytest.raises(ObjectMissing, match="does not exist"):
        await objects.get(small)


async def test_large_objects_are_spooled_to_a_file(s3_lake: LakeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.lib.lake.storage.objects._IN_MEMORY", 1 << 20)
    objects, place = Objects(s3_lake), join(s3_lake.warehouse, "spooled")

    def fill(sink: Sink) -> None:
        for number in range(20):
            sink.write(bytes([number]) * (1 << 20))

    await objects.write(place, fill)
    assert await objects.size(place) == 20 << 20
    assert await objects.get_range(place, (19 << 20) - 1, 2) == bytes([18, 19])


async def test_a_failing_writer_leaves_nothing(s3_lake: LakeSettings) -> None:
    objects, place = Objects(s3_lake), join(s3_lake.warehouse, "failed")

    def fill(sink: Sink) -> None:
        sink.write(b"half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await objects.write(place, fill)
    assert not await objects.exists(place)


async def test_a_cancelled_write_is_over_when_the_call_returns(s3_lake: LakeSettings) -> None:
    objects, place = Objects(s3_lake), join(s3_lake.warehouse, "cancelled")
    writing = asyncio.create_task(objects.put(place, b"x" * (1 << 20)))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await objects.delete_many([place])
    assert not await objects.exists(place)


async def test_refusals_name_the_remedy(s3_lake: LakeSettings) -> None:
    stranger = Objects(
        s3_lake.model_copy(update={"s3": s3_lake.s3.model_copy(update={"secret_key": SecretStr("wrong")})})
    )
    with pytest.raises(StorageRefused, match="check lake"):
        await stranger.put(join(s3_lake.warehouse, "x"), b"")
    with pytest.raises(StorageRefused, match="there is no bucket 'nowhere'"):
        await Objects(s3_lake).put("s3://nowhere/x", b"")


@pytest.mark.slow
async def test_an_unreachable_server_is_unavailable(tmp_path: Path) -> None:
    with S3Server(tmp_path) as server:
        server.create_bucket("lake")
        objects = Objects(LakeSettings(warehouse="s3://lake", s3=server.settings), timeout_s=30, retry_s=0)
        await objects.put("s3://lake/x", b"x")
        server.kill()
        for call in (objects.put("s3://lake/y", b""), objects.get("s3://lake/x"), objects.delete_many(["s3://lake/x"])):
            with pytest.raises(StorageUnavailable, match="reachable"):
                await call
        server.start()
        assert await objects.get("s3://lake/x") == b"x"
