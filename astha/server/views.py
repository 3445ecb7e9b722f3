"""Pages of the registry for the dashboard. Each reads a bounded number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, get_args

import msgspec

from astha.daemon_groups import read_groups
from registry.clock import Clock
from registry.contract import MetadataStore
from registry.errors import Invalid, NotFound
from registry.models import (
    Compaction,
    CompactionStatus,
    ConsumerOffset,
    FileSizes,
    LakeTable,
    Row,
    TableOrder,
    TableSnapshot,
)

Arguments: TypeAlias = Mapping[str, str]

_MAX_PAGE = 200
_SIZE_BOUNDS = (0, *(1 << power for power in range(14, 31, 2)))  # 16 KiB, 64 KiB, ... 1 GiB
_SNAPSHOT_PAGES = 10
_SNAPSHOTS = 200
_JOBS = 1_000
_OFFSETS = 20_000


class Views:
    """Raises NotFound, Invalid or Unavailable."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._by_name: dict[str, Callable[[Arguments], Awaitable[object]]] = {
            "tables": self._tables,
            "table": self._table,
            "compactions": self._compactions,
            "topics": self._topics,
            "topic": self._topic,
            "daemons": self._daemons,
        }

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    async def read(self, name: str, arguments: Arguments) -> object:
        return await self._by_name[name](arguments)

    async def _tables(self, arguments: Arguments) -> object:
        order = _one_of(arguments, "order", "name", get_args(TableOrder))
        page = await self._store.search_tables(
            arguments.get("search", ""), order=order, after=_key(arguments), limit=_limit(arguments)
        )
        return {"tables": [_shown(table) for table in page.tables], "total": page.total, "after": page.after}

    async def _table(self, arguments: Arguments) -> object:
        table = await find_named(self._store, arguments.get("name", ""))
        metadata = await self._store.get_table_metadata(table.id)
        snapshots = await self._snapshots(table)
        sizes = await self._store.count_file_sizes(table.id, _SIZE_BOUNDS)
        merged = await self._store.list_compactions(table_id=table.id, statuses=["done"], limit=_JOBS)
        recent = await self._store.list_compactions(table_id=table.id, limit=20)
        savings = await self._store.get_savings(table_id=table.id)
        return {
            "table": _shown(table),
            "metadata": None if metadata is None else _shown(metadata),
            "size_bounds": _SIZE_BOUNDS,
            "sizes": sizes,
            "merged": _merged(merged, sizes),
            "savings": savings[0] if savings else None,
            "snapshots": [_shown(row) for row in snapshots],
            "compactions": [_shown(row) for row in recent],
        }

    async def _snapshots(self, table: LakeTable) -> list[TableSnapshot]:
        """Returns the newest ones, oldest first."""
        rows: list[TableSnapshot] = []
        for _ in range(_SNAPSHOT_PAGES):
            page = await self._store.list_snapshots(table.id, after=rows[-1].id if rows else 0)
            if not page:
                break
            rows = [*rows, *page][-_SNAPSHOTS:]
        return rows

    async def _compactions(self, arguments: Arguments) -> object:
        known = get_args(CompactionStatus)
        status = arguments.get("status")
        statuses = [] if not status else [_one_of(arguments, "status", "", known)]
        table = arguments.get("table")
        table_id = None if not table else (await find_named(self._store, table)).id
        before = _key(arguments)
        if before is not None and not isinstance(before[0], int):
            raise Invalid("after", before[0], "must be `after` of the page before")
        limit = _limit(arguments)
        rows = await self._store.list_compactions(
            table_id=table_id,
            statuses=statuses,
            before=before,  # type: ignore[arg-type]  # checked above
            limit=limit,
        )
        running = await self._store.list_compactions(statuses=["running"], limit=_MAX_PAGE)
        return {
            "running": [_shown(row) for row in running],
            "compactions": [_shown(row) for row in rows],
            "after": [rows[-1].decided_at, rows[-1].id] if len(rows) == limit else None,
        }

    async def _topics(self, arguments: Arguments) -> object:
        """All topics are read: their number is that of a person's choices, not of data."""
        text, limit = arguments.get("search", "").lower(), _limit(arguments)
        after = arguments.get("after", "")
        found = [topic for topic in await self._store.list_topics() if text in topic.name.lower()]
        page = [topic for topic in found if topic.name > after]
        return {
            "topics": [_shown(topic) for topic in page[:limit]],
            "total": len(found),
            "after": page[limit - 1].name if len(page) > limit else None,
        }

    async def _topic(self, arguments: Arguments) -> object:
        name = arguments.get("name", "")
        topic = await self._store.get_topic(name)
        if topic is None:
            raise NotFound(f"there is no topic {name!r}")
        partitions = await self._store.list_partitions(name)
        leases = {lease.partition_id: lease for lease in await self._store.list_partition_leases(topic=name)}
        offsets = await self._offsets(name)
        now = self._clock.now_ms()
        return {
            "topic": _shown(topic),
            "partitions": [
                {
                    "partition": partition.partition_id,
                    "end": partition.high_watermark,
                    "agent": None if lease is None or lease.expires_at <= now else lease.leader_agent_id,
                }
                for partition in partitions
                for lease in [leases.get(partition.partition_id)]
            ],
            "groups": _group_lag(offsets, {row.partition_id: row.high_watermark for row in partitions}),
        }

    async def _offsets(self, topic: str) -> list[ConsumerOffset]:
        found: list[ConsumerOffset] = []
        read = 0
        async with self._store.consistent_read() as snapshot:
            async for page in snapshot.rows(ConsumerOffset):
                found += [row for row in page if row.topic == topic]
                read += len(page)
                if read >= _OFFSETS:
                    break
        return found

    async def _daemons(self, _: Arguments) -> object:
        return {"groups": await read_groups(self._store, self._clock), "now": self._clock.now_ms()}


async def find_named(store: MetadataStore, name: str) -> LakeTable:
    """Finds a table by `DATABASE.TABLE`, split at the last dot."""
    database, _, table = name.rpartition(".")
    found = await store.get_table(database, table) if database and table else None
    if found is None:
        hint = "it may be dropped or renamed" if database and table else "write DATABASE.TABLE"
        raise NotFound(f"there is no table {name!r}: {hint}")
    return found


def _shown(row: Row) -> dict[str, Any]:
    shown: dict[str, Any] = row.to_builtins()
    if isinstance(row, TableSnapshot) and row.snapshot_id is not None:
        shown["snapshot_id"] = str(row.snapshot_id)  # JavaScript's numbers have 53 bits
    return shown


def _merged(jobs: list[Compaction], live: list[FileSizes]) -> dict[str, object]:
    """Counts the inputs of compactions by size, as their outcomes have it, without those that an earlier compaction
    wrote. Those of a job whose outcome has no sizes count at their mean size, and as `estimated`. `missing` are results
    that the table no longer has and that were not merged again.
    """
    found: Counter[int] = Counter()
    estimated = again = 0
    for row in jobs:
        result = _result(row)
        if result is None:
            sizes = {row.input_bytes // row.input_files: row.input_files} if row.input_files else {}
            result = _Result(sizes)
            estimated += row.input_files
        for size, files in result.input_sizes.items():
            found[_class_of(size)] += files
        for size, files in result.merged_again.items():
            found[_class_of(size)] -= files
            again += files
    results = sum(row.output_files for row in jobs)
    left = sum(one.files for one in live if one.compacted)
    return {
        "files": [{"from_bytes": bound, "files": files} for bound, files in sorted(found.items()) if files],
        "estimated": estimated,
        "missing": max(0, results - left - again),
        "compactions": len(jobs),
        "more": len(jobs) == _JOBS,
    }


class _Result(msgspec.Struct):
    input_sizes: dict[int, int]  # by the power of two below the size: each of the bounds above is one
    merged_again: dict[int, int] = {}  # those of them that an earlier compaction wrote


class _Explanation(msgspec.Struct):
    result: _Result


def _result(row: Compaction) -> _Result | None:
    """Returns None if the outcome has no sizes: of an earlier version, or of a writer killed after the swap."""
    try:
        result = msgspec.json.decode(row.explanation, type=_Explanation).result
    except msgspec.DecodeError:
        return None
    sizes, again = result.input_sizes, result.merged_again
    complete = sum(sizes.values()) == row.input_files and all(size >= 0 for size in sizes)
    return result if complete and all(0 <= again[size] <= sizes.get(size, 0) for size in again) else None


def _class_of(size: int) -> int:
    return max(bound for bound in _SIZE_BOUNDS if bound <= size)


def _group_lag(offsets: list[ConsumerOffset], ends: Mapping[int, int]) -> list[dict[str, object]]:
    groups: dict[str, list[ConsumerOffset]] = {}
    for row in offsets:
        groups.setdefault(row.group_id, []).append(row)
    return [
        {
            "group": name,
            "lag": sum(max(0, ends.get(row.partition_id, 0) - row.committed_offset) for row in rows),
            "partitions": {row.partition_id: row.committed_offset for row in rows},
            "committed_at": max(row.committed_at for row in rows),
        }
        for name, rows in sorted(groups.items())
    ]


def _limit(arguments: Arguments) -> int:
    text = arguments.get("limit", "50")
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MAX_PAGE):
        raise Invalid("limit", text, f"must be a number from 1 to {_MAX_PAGE}")
    return int(text)


def _key(arguments: Arguments) -> tuple[str | int, int] | None:
    """Returns the key of a page, as the page before it has it in `after`: JSON."""
    text = arguments.get("after")
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=tuple[str | int, int])
    except msgspec.DecodeError:
        raise Invalid("after", text, "must be `after` of the page before") from None


def _one_of(arguments: Arguments, name: str, default: str, known: tuple[str, ...]) -> Any:
    value = arguments.get(name) or default
    if value not in known:
        raise Invalid(name, value, f"must be one of {', '.join(known)}")
    return value
