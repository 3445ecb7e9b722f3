from __future__ import annotations

from typing import Any, cast

from components.compactor.merge import UnmergeableFile
from components.compactor.planning.left_out import (
    FileBackoff,
    LeftOut,
    left_out_record,
    newest_left_out,
    note_bad,
    read_left_out,
)
from registry.contract import MetadataStore
from registry.json_text import to_json_text
from registry.models import Compaction, CompactionStatus
from tests.doubles.clock import ManualClock

HOUR_MS = 3_600_000
BAD = UnmergeableFile("file:///a.parquet", "is damaged")
OTHER = UnmergeableFile("file:///b.parquet", "hangs")


def row(number: int, *bad: UnmergeableFile, status: CompactionStatus = "done", path: str = "day=1") -> Compaction:
    explanation = to_json_text({"rule": "many small files", "result": {"groups": 1, **left_out_record(bad)}})
    return Compaction(
        number, 7, "shop.orders", path, status, "event", "x", None, explanation, None, 0, 0, 0, 0, 0, None, None, False,
        None, number, None, number, number,
    )  # fmt: skip


class Journal:
    """The part of a store that is used."""

    def __init__(self, *rows: Compaction) -> None:
        self.rows = list(rows)
        self.asked = 0

    async def list_compactions(self, **_options: Any) -> list[Compaction]:
        self.asked += 1
        return self.rows


def test_left_out_files_are_recorded_and_read_again() -> None:
    assert read_left_out(row(1, BAD, OTHER)) == [BAD, OTHER]
    assert read_left_out(row(1)) == []
    many = [UnmergeableFile(f"file:///{number}", "is damaged") for number in range(80)]
    assert len(read_left_out(row(1, *many))) == 50, "an explanation has a bound"


def test_the_backoff_doubles_up_to_a_day() -> None:
    waits: dict[str, FileBackoff] = {}
    found = []
    for _ in range(7):
        note_bad(waits, [BAD], 0)
        found.append(waits[BAD.path].until_ms // HOUR_MS)
    assert found == [1, 2, 4, 8, 16, 24, 24]


def test_left_out_files_by_partition() -> None:
    rows = [row(3, BAD), row(2, BAD, OTHER), row(1, BAD, path="day=2"), row(4, BAD, status="aborted")]
    found = newest_left_out(rows)
    assert {path: {file: wait.times for file, wait in waits.items()} for path, waits in found.items()} == {
        "day=1": {BAD.path: 2, OTHER.path: 1},
        "day=2": {BAD.path: 1},
    }


async def test_the_journal_is_read_once_and_removed_files_are_forgotten() -> None:
    clock = ManualClock()
    journal = Journal(row(clock.now_ms(), BAD, OTHER))
    left_out = LeftOut(cast("MetadataStore", journal), clock)
    assert list(left_out) == []
    assert set(await left_out.of(7, "day=1")) == {BAD.path, OTHER.path}
    assert await left_out.of(7, "day=2") == {}
    left_out.keep_only(7, "day=1", [BAD.path])
    assert [(key, list(waits)) for key, waits in left_out] == [((7, "day=1"), [BAD.path])]
    await left_out.of(7, "day=1")
    assert journal.asked == 2
    clock.advance(2 * HOUR_MS)
    assert await left_out.of(7, "day=1") == {}, "tried again"
    left_out.note(7, "day=1", [BAD])
    clock.advance(HOUR_MS + 1)
    assert set(await left_out.of(7, "day=1")) == {BAD.path}, "and left out for longer if it is still bad"
