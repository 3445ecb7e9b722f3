from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr

from astha.subscribers.context import ComponentContext, LakeSettings
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import Objects
from components.lib.streams.agents import AgentSettings
from components.lib.streams.errors import AppendFailed, NotLeader, OutOfOrder, RecordTooLarge, WriterClosed
from components.lib.streams.format import NewRecord, Record, read_footer
from components.lib.streams.writer import Appended, AppendId, Producer, SegmentWriter, WriterSettings
from registry.contract import MetadataStore
from registry.errors import NotFound
from tests.doubles.clock import ManualClock
from tests.streams import Process, assert_no_orphans, read_partition, releases_done
from tests.waiting import eventually

TOPICS = {"orders": 4}


@pytest.fixture(autouse=True)
async def _topic(store: MetadataStore) -> None:
    await store.create_topic("orders", 4)


async def test_appended_records_are_stored(store: MetadataStore, lake: LakeSettings, warehouse: Path) -> None:
    records = [NewRecord(b"one", b"k", [("h", b"x")], 5), NewRecord(None, timestamp=7), NewRecord(b"", b"", (), 6)]
    async with Process(store, lake) as process:
        first = await process.writer.append("orders", 1, records)
        second = await process.writer.append("orders", 1, [NewRecord(b"four", timestamp=8)])
    assert (first, second) == (Appended("orders", 1, 0, 3), Appended("orders", 1, 3, 1))
    assert list(first.offsets) == [0, 1, 2]
    assert await read_partition(store, Objects(lake), "orders", 1) == [
        Record(0, 5, b"k", b"one", (("h", b"x"),)),
        Record(1, 7, None, None),
        Record(2, 6, b"", b""),
        Record(3, 8, None, b"four"),
    ]
    assert await store.list_stale_intents(0) == []
    assert (await store.list_partition_leases())[0].leader_agent_id is None
    await assert_no_orphans(store, warehouse, TOPICS)


async def test_an_agent_has_one_writer(store: MetadataStore, lake: LakeSettings) -> None:
    async with Process(store, lake) as process:
        context = ComponentContext(store=store, clock=process.clock, registry_url=SecretStr(""), lake=lake)
        with pytest.raises(RuntimeError, match="has a writer already"):
            await SegmentWriter(context, process.agent).__aenter__()
        assert (await process.writer.append("orders", 0, [b"x"])).base_offset == 0


async def test_partitions_share_an_object(store: MetadataStore, lake: LakeSettings) -> None:
    async with Process(store, lake) as process:
        await asyncio.gather(*(process.agent.acquire("orders", number) for number in range(4)))
        await asyncio.gather(*(process.writer.append("orders", n % 4, [b"%d" % n]) for n in range(20)))
        assert process.writer.statistics.objects == 1
        assert process.writer.statistics.segments == 4
    (first,) = await store.get_segments("orders", 0)
    assert first.record_count == 5
    found = await store.get_object_segments(first.s3_bucket, first.s3_key)
    data = await Objects(lake).get(first.uri)
    listed = [(entry.topic, entry.partition_id, entry.base_offset, entry.byte_offset) for entry in read_footer(data)]
    assert listed == [(row.topic, row.partition_id, row.base_offset, row.byte_offset) for row in found]
    for number in range(4):
        records = await read_partition(store, Objects(lake), "orders", number)
        assert [record.value for record in records] == [b"%d" % n for n in range(number, 20, 4)]


async def test_partitions_per_object_are_bounded(store: MetadataStore, lake: LakeSettings) -> None:
    async with Process(store, lake, settings=WriterSettings(max_object_segments=3)) as process:
        await asyncio.gather(*(process.agent.acquire("orders", number) for number in range(4)))
        await asyncio.gather(*(process.writer.append("orders", n, [b"x"]) for n in range(4)))
        assert (process.writer.statistics.windows, process.writer.statistics.objects) == (1, 2)


async def test_pipelined_appends_keep_their_order(store: MetadataStore, lake: LakeSettings) -> None:
    settings = WriterSettings(object_bytes=2_000, window_s=0.0, parallel_uploads=4)
    async with Process(store, lake, settings=settings) as process:
        tasks = []
        for number in range(200):
            tasks.append(asyncio.create_task(process.writer.append("orders", number % 2, [b"%05d" % number * 20])))
            await asyncio.sleep(0)
        appended = await asyncio.gather(*tasks)
        assert process.writer.statistics.objects > 5
    for partition in (0, 1):
        assert [one.base_offset for one in appended[partition::2]] == list(range(100))
        records = await read_partition(store, Objects(lake), "orders", partition)
        assert [record.value for record in records] == [b"%05d" % n * 20 for n in range(partition, 200, 2)]


async def test_a_large_append_has_several_blocks(store: MetadataStore, lake: LakeSettings) -> None:
    values = [b"%06d" % n * 20 for n in range(5_000)]
    async with Process(store, lake, settings=WriterSettings(block_bytes=64 << 10)) as process:
        await process.writer.append("orders", 0, values)
    (segment,) = await store.get_segments("orders", 0)
    assert segment.block_index is not None
    assert [record.value for record in await read_partition(store, Objects(lake), "orders", 0)] == values


class GatedObjects(Objects):
    def __init__(self, lake: LakeSettings) -> None:
        super().__init__(lake)
        self.gate = asyncio.Event()

    async def put(self, uri: str, data: bytes) -> None:
        await self.gate.wait()
        await super().put(uri, data)


async def test_appends_during_an_upload_gather_until_there_are_enough(store: MetadataStore, lake: LakeSettings) -> None:
    settings = WriterSettings(window_s=3_600, linger_s=3_600, target_appends=2)
    objects = GatedObjects(lake)
    async with Process(store, lake, settings=settings, objects=objects) as process:
        await asyncio.gather(*(process.agent.acquire("orders", number) for number in range(3)))
        alone = asyncio.create_task(process.writer.append("orders", 0, [b"goes at once"]))
        await eventually(lambda: process.writer.statistics.windows == 1, "an upload in flight")
        behind = asyncio.create_task(process.writer.append("orders", 1, [b"waits"]))
        objects.gate.set()
        await alone
        for _ in range(50):
            await asyncio.sleep(0)
        assert not behind.done()
        await process.writer.append("orders", 2, [b"makes it two"])
        await behind
        assert process.writer.statistics.objects == 2


async def test_large_appends_are_uploaded_beside_an_upload_in_flight(store: MetadataStore, lake: LakeSettings) -> None:
    """Otherwise the writer waits for the storage, and the storage for the writer, in turns."""
    settings = WriterSettings(window_s=3_600, linger_s=3_600)
    large = [bytes(1 << 20)] * 4
    async with Process(store, lake, settings=settings, objects=(objects := GatedObjects(lake))) as process:
        await asyncio.gather(*(process.agent.acquire("orders", number) for number in range(2)))
        alone = asyncio.create_task(process.writer.append("orders", 0, [b"goes at once"]))
        await eventually(lambda: process.writer.statistics.windows == 1, "an upload in flight")
        more = [asyncio.create_task(process.writer.append("orders", 1, large)) for _ in range(4)]
        await eventually(lambda: process.writer.statistics.windows > 1, "a second upload")
        assert not alone.done()
        objects.gate.set()
        await process.writer.flush()
        assert [(await append).base_offset for append in more] == [0, 4, 8, 12]


async def test_flush_closes_the_window(store: MetadataStore, lake: LakeSettings) -> None:
    settings = WriterSettings(window_s=3_600, linger_s=3_600)
    objects = GatedObjects(lake)
    async with Process(store, lake, settings=settings, objects=objects) as process:
        await asyncio.gather(*(process.agent.acquire("orders", number) for number in range(2)))
        appends = [asyncio.create_task(process.writer.append("orders", 0, [b"goes at once"]))]
        await eventually(lambda: process.writer.statistics.windows == 1, "an upload in flight")
        appends.append(asyncio.create_task(process.writer.append("orders", 1, [b"waits"])))
        await asyncio.sleep(0)
        objects.gate.set()
        await process.writer.flush()
        assert process.writer.statistics.appends == 2  # the tasks themselves may need another step of the loop


async def test_slow_storage_slows_producers_down(store: MetadataStore, lake: LakeSettings) -> None:
    objects = GatedObjects(lake)
    settings = WriterSettings(buffer_bytes=10_000, max_append_bytes=5_000)
    async with Process(store, lake, settings=settings, objects=objects) as process:
        tasks = [asyncio.create_task(process.writer.append("orders", 0, [bytes(2_000)])) for _ in range(20)]
        await eventually(lambda: process.writer.statistics.buffered_bytes > 8_000, "some appends in memory")
        for _ in range(50):
            await asyncio.sleep(0)
        assert process.writer.statistics.buffered_bytes <= 10_000
        tasks[-1].cancel()  # while it waits for memory
        objects.gate.set()
        await asyncio.gather(*tasks[:-1])
        assert process.writer.statistics.buffered_bytes == 0
        assert process.writer.statistics.records == 19
        with pytest.raises(RecordTooLarge, match="max_append_bytes"):
            await process.writer.append("orders", 0, [bytes(6_000)])
        with pytest.raises(ValueError, match="no records"):
            await process.writer.append("orders", 0, [])
    with pytest.raises(WriterClosed):
        await process.writer.append("orders", 0, [b"x"])


async def test_an_unknown_partition_is_reported(store: MetadataStore, lake: LakeSettings) -> None:
    async with Process(store, lake) as process:
        good, bad = await asyncio.gather(
            process.writer.append("orders", 0, [b"x"]),
            process.writer.append("orders", 9, [b"x"]),
            return_exceptions=True,
        )
        assert good == Appended("orders", 0, 0, 1)
        assert isinstance(bad, NotFound)
        assert "partition 9 of topic 'orders'" in str(bad)


async def test_a_partition_of_another_agent_is_refused(
    store: MetadataStore, lake: LakeSettings, clock: ManualClock
) -> None:
    async with Process(store, lake, agent_id="first") as first, Process(store, lake, agent_id="second") as second:
        await first.writer.append("orders", 0, [b"1"])
        with pytest.raises(NotLeader, match="agent 'first' at local") as caught:
            await second.writer.append("orders", 0, [b"2"])
        assert caught.value.holder == "first"
        clock.advance(30_000)  # its lease was not renewed and expires
        assert (await second.writer.append("orders", 0, [b"3"])).base_offset == 1
        with pytest.raises(AppendFailed, match="no longer held"):  # when it resumes
            await first.writer.append("orders", 0, [b"4"])
        both = await asyncio.gather(
            first.writer.append("orders", 0, [b"5"]), first.writer.append("orders", 1, [b"6"]), return_exceptions=True
        )
        assert isinstance(both[0], NotLeader)
        assert both[1] == Appended("orders", 1, 0, 1)
    records = await read_partition(store, Objects(lake), "orders", 0)
    assert [record.value for record in records] == [b"1", b"3"]


async def test_one_fenced_partition_fails_alone(store: MetadataStore, lake: LakeSettings, warehouse: Path) -> None:
    async with Process(store, lake) as process:
        await asyncio.gather(*(process.writer.append("orders", n, [b"a"]) for n in range(4)))
        lease = await store.get_partition_lease("orders", 2)
        assert lease is not None
        await store.release_partition_lease(lease)
        results = await asyncio.gather(
            *(process.writer.append("orders", n, [b"b"]) for n in range(4)), return_exceptions=True
        )
        assert isinstance(results[2], AppendFailed)
        assert [result for n, result in enumerate(results) if n != 2] == [
            Appended("orders", n, 1, 1) for n in (0, 1, 3)
        ]
        assert (await process.writer.append("orders", 2, [b"c"])).base_offset == 1
    await assert_no_orphans(store, warehouse, TOPICS)
    assert await store.list_stale_intents(0) == []


async def test_a_topic_deleted_under_its_writer(store: MetadataStore, lake: LakeSettings, warehouse: Path) -> None:
    await store.create_topic("deleted", 1)
    async with Process(store, lake) as process:
        await asyncio.gather(process.writer.append("deleted", 0, [b"a"]), process.writer.append("orders", 0, [b"a"]))
        await store.delete_topic("deleted")
        results = await asyncio.gather(
            process.writer.append("deleted", 0, [b"b"]), process.writer.append("orders", 0, [b"b"]),
            return_exceptions=True,
        )  # fmt: skip
        assert isinstance(results[0], AppendFailed)
        assert results[1] == Appended("orders", 0, 1, 1)
        with pytest.raises(NotFound):
            await process.writer.append("deleted", 0, [b"c"])
    await assert_no_orphans(store, warehouse, TOPICS)


async def test_repeated_appends_are_written_once(store: MetadataStore, lake: LakeSettings) -> None:
    async with Process(store, lake, agent_id="first") as process:
        append = process.writer.append
        one = await append("orders", 0, [b"a", b"b"], append_id=AppendId("p", 0))
        assert await append("orders", 0, [b"a", b"b"], append_id=AppendId("p", 0)) == one
        both = await asyncio.gather(  # during the upload
            append("orders", 0, [b"c"], append_id=AppendId("p", 2)),
            append("orders", 0, [b"c"], append_id=AppendId("p", 2)),
        )
        assert both[0] == both[1] == Appended("orders", 0, 2, 1)
        with pytest.raises(OutOfOrder, match="next sequence is 3"):
            await append("orders", 0, [b"e"], append_id=AppendId("p", 4))
    async with Process(
        store, lake, agent_id="second"
    ) as process:  # another process reads the sequences from the registry
        append = process.writer.append
        assert await append("orders", 0, [b"c"], append_id=AppendId("p", 2)) == Appended("orders", 0, 2, 1)
        assert (await append("orders", 0, [b"d"], append_id=AppendId("p", 3))).base_offset == 3
        assert (await append("orders", 0, [b"x"], append_id=AppendId("p", 0, epoch=1))).base_offset == 4
        with pytest.raises(OutOfOrder, match="epoch 1 has begun"):
            await append("orders", 0, [b"y"], append_id=AppendId("p", 4))
    records = await read_partition(store, Objects(lake), "orders", 0)
    assert [record.value for record in records] == [b"a", b"b", b"c", b"d", b"x"]


async def test_a_producer_continues_after_a_lost_lease(store: MetadataStore, lake: LakeSettings) -> None:
    async with Process(store, lake) as process:
        producer = Producer(process.writer, process.clock)
        for turn in range(5):
            assert (await producer.append("orders", 0, [b"%d" % turn])).base_offset == turn
            lease = await store.get_partition_lease("orders", 0)
            assert lease is not None
            await store.release_partition_lease(lease)
    records = await read_partition(store, Objects(lake), "orders", 0)
    assert [record.value for record in records] == [b"%d" % turn for turn in range(5)]


async def test_another_agent_takes_over_from_a_killed_writer(
    store: MetadataStore, lake: LakeSettings, warehouse: Path, clock: ManualClock
) -> None:
    first = await Process(store, lake, agent_id="first").__aenter__()
    await first.writer.append("orders", 0, [b"1"])
    interrupted = asyncio.create_task(first.writer.append("orders", 0, [b"2"]))
    await asyncio.sleep(0)
    await first.kill()
    await asyncio.gather(interrupted, return_exceptions=True)
    clock.advance(30_000)
    async with Process(store, lake, agent_id="second") as second:
        await second.writer.append("orders", 0, [b"3"])
    await assert_no_orphans(store, warehouse, TOPICS)
    records = await read_partition(store, Objects(lake), "orders", 0)
    assert [record.value for record in records if record.value != b"2"] == [b"1", b"3"]
    clock.advance(30_000)
    await clean_intents(store, Objects(lake), 5_000, "cleaner")
    assert await store.list_stale_intents(0) == []
    await assert_no_orphans(store, warehouse, TOPICS)
    assert len(await read_partition(store, Objects(lake), "orders", 0)) == len(records)


async def test_agents_share_partitions(store: MetadataStore, lake: LakeSettings) -> None:
    await store.create_topic("shared", 10)
    settings = AgentSettings(topics=["shared"], drain_timeout_s=1)
    async with Process(store, lake, agent=settings, agent_id="a") as first:
        assert len(first.agent.leases) == 10
        async with Process(store, lake, agent=settings, agent_id="b") as second:
            for _ in range(3):
                await first.agent.balance()
                await releases_done(first.agent)
                await second.agent.balance()
            assert (len(first.agent.leases), len(second.agent.leases)) == (5, 5)
            await second.writer.append(*second.agent.leases[0].key, [b"x"])
        await first.agent.balance()
        assert len(first.agent.leases) == 10
