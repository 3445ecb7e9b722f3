"""What the verbs cost on DynamoDB: requests and capacity units, and the time on DynamoDB Local.

Units are computed by AWS's rules from the items that are sent and received, because DynamoDB Local counts a transaction
as one item: two write units per KB of each item of a transaction (a deleted item counts as up to 1 KB), one read unit
per 4 KB of each item, or of all items of a query. Times are those on loopback: AWS's are not measured here.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.report import Report, run
from registry.inputs import FileDraft, OffsetDraft, SegmentDraft, TableDraft
from registry.json_text import JsonText
from registry.stores.dynamodb.opening import create, open_registry
from registry.stores.dynamodb.store import DynamoStore
from tests.servers.dynamodb import DynamoServer

_WRITE_UNIT, _READ_UNIT = 1_024, 4_096


@dataclass
class Meter:
    requests: int = 0
    read: int = 0
    written: int = 0

    def attach(self, store: DynamoStore) -> None:
        send = store._client.call

        async def counted(operation: str, **request: Any) -> Any:
            match operation:
                case "transact_write_items":
                    self._write([_sent(action) for action in request["TransactItems"]], transactional=True)
                case "batch_write_item":
                    self._write([_sent(action) for items in request["RequestItems"].values() for action in items])
            found = await send(operation, **request)
            match operation:
                case "get_item":
                    self.read += _units(_size(found.get("Item", {})), _READ_UNIT)
                case "batch_get_item":
                    items = [item for one in found["Responses"].values() for item in one]
                    asked = sum(len(one["Keys"]) for one in request["RequestItems"].values())
                    self.read += sum(_units(_size(item), _READ_UNIT) for item in items) + asked - len(items)
                case "query":
                    self.read += _units(sum(_size(item) for item in found["Items"]), _READ_UNIT)
            self.requests += 1
            return found

        store._client.call = counted  # type: ignore[method-assign]

    def _write(self, sizes: Sequence[int], *, transactional: bool = False) -> None:
        self.written += sum(_units(size, _WRITE_UNIT) for size in sizes) * (2 if transactional else 1)

    def reset(self) -> None:
        self.requests = self.read = self.written = 0


def _sent(action: dict[str, Any]) -> int:
    ((_, body),) = action.items()
    return _size(body.get("Item", {}))


def _size(item: dict[str, dict[str, str | bytes]]) -> int:
    """As DynamoDB counts: names and values, in UTF-8; a number is about half as long as its digits."""
    total = 0
    for name, value in item.items():
        ((kind, content),) = value.items()
        length = len(content.encode() if isinstance(content, str) else content)
        total += len(name) + (length // 2 + 1 if kind == "N" else length)
    return total


def _units(size: int, unit: int) -> int:
    return max(1, -(-size // unit))


async def measure(report: Report) -> None:
    with tempfile.TemporaryDirectory() as directory, DynamoServer(Path(directory), durable=False) as server:
        url = server.url("costs")
        await create(url)
        store = await open_registry(url)
        meter = Meter()
        meter.attach(store)
        repeats = 5 if report.quick else 30
        await _streams(report, store, meter, repeats)
        await _lake(report, store, meter, repeats)
        await store.close()


async def _streams(report: Report, store: DynamoStore, meter: Meter, repeats: int) -> None:
    await store.create_topic("orders", 10)
    await store.ensure_consumer_group("readers")
    await store.register_agent("agent-1", "127.0.0.1:1")
    lease = await store.take_daemon_lease("astha", "one", 60_000)
    assert lease is not None
    base = iter(range(0, 10**9, 10))
    many = range(1_000)

    async def costs(name: str, call: Callable[[], Awaitable[object]], times: int = repeats) -> None:
        await _costs(report, meter, name, call, times)

    await costs("add_segments_1", lambda: store.add_segments([_segment(next(base))]))
    await costs("add_segments_10", lambda: store.add_segments([_segment(next(base)) for _ in many[:10]]))
    await costs("add_segments_1000", lambda: store.add_segments([_segment(next(base)) for _ in many]), 1)
    await costs("find_segment_for_offset", lambda: store.find_segment_for_offset("orders", 0, 42))
    await costs("get_segments_1000", lambda: store.get_segments("orders", 0))
    await costs("get_partition", lambda: store.get_partition("orders", 0))
    await costs("commit_offset", lambda: store.commit_offsets("readers", [OffsetDraft("orders", 0, next(base))]))
    await costs("heartbeat", lambda: store.heartbeat("agent-1"))
    await costs("renew_daemon_lease", lambda: store.renew_daemon_lease(lease, 60_000))


async def _lake(report: Report, store: DynamoStore, meter: Meter, repeats: int) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TableDraft(schema=JsonText('{"fields":[]}')))
    numbers = iter(range(10**9))

    def drafts(count: int) -> list[FileDraft]:
        return [
            FileDraft(file_path=f"s3://lake/t/{next(numbers):08d}.parquet", file_size=1, row_count=1, schema_version=1)
            for _ in range(count)
        ]

    await _costs(report, meter, "add_files_1", lambda: store.add_files(table.id, drafts(1)), repeats)
    await _costs(report, meter, "add_files_10", lambda: store.add_files(table.id, drafts(10)), repeats)
    await _costs(report, meter, "add_files_1000", lambda: store.add_files(table.id, drafts(1_000)), 1)
    files = await store.list_files(table.id)

    async def swap() -> None:
        old, new = files[:5], drafts(1)
        del files[:5]
        await store.swap_files(table.id, old, new, operation_id=f"swap-{len(files)}")

    await _costs(report, meter, "swap_files_5_to_1", swap, min(repeats, 10))
    await _costs(report, meter, "list_files_1000", lambda: store.list_files(table.id), repeats)


async def _costs(report: Report, meter: Meter, name: str, call: Callable[[], Awaitable[object]], times: int) -> None:
    meter.reset()
    started = perf_counter()
    for _ in range(times):
        await call()
    each = (perf_counter() - started) / times * 1_000
    for what, total in (("requests", meter.requests), ("read_units", meter.read), ("write_units", meter.written)):
        report.add(f"{name}_{what}", total / times, f"per call; {each:.1f} ms per call on DynamoDB Local")


def _segment(base: int) -> SegmentDraft:
    return SegmentDraft(
        topic="orders", partition_id=0, base_offset=base, end_offset=base + 9, record_count=10, size_bytes=1_000,
        s3_bucket="lake", s3_key=f"orders/{base}",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run("dynamodb", measure))
