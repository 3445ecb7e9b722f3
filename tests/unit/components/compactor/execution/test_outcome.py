"""The outcome of a job, as the journal has it."""

from __future__ import annotations

import msgspec

from components.compactor.execution.outcome import JobOutcome, JobTotals, count_sizes
from components.compactor.execution.swap import Swap
from components.compactor.merge import MergeResult
from registry.json_text import JsonText, parse_json
from registry.models import TableFile
from tests.samples import ONE_OF_EACH

RESULT = MergeResult(
    files=[], rows_in=3, rows_out=3, checksums_in={}, checksums_out={}, bytes_read=10_300, bytes_written=10_300,
    strategy="binpack", why="test", seconds={},
)  # fmt: skip
(FILE,) = [row for row in ONE_OF_EACH if isinstance(row, TableFile)]


def sized(*sizes: int) -> list[TableFile]:
    return [msgspec.structs.replace(FILE, file_size=size, operation="insert") for size in sizes]


def test_sizes_are_counted_by_powers_of_two() -> None:
    assert count_sizes(sized(0, 1, 1023, 1024, 1025, 2048)) == {0: 1, 1: 1, 512: 1, 1024: 2, 2048: 1}


def test_the_record_has_the_sizes_of_the_inputs() -> None:
    outcome = JobOutcome(status="done", groups=1, input_files=3, input_sizes=count_sizes(sized(600, 700, 9000)))
    record = outcome.to_record(JsonText('{"rule":"many small files"}'))
    assert record.explanation is not None
    found = parse_json(record.explanation)
    assert isinstance(found, dict)
    assert found["rule"] == "many small files"
    assert isinstance(found["result"], dict)
    assert found["result"]["input_sizes"] == {"512": 2, "8192": 1}
    assert found["result"]["merged_again"] == {}


def test_inputs_that_a_compaction_wrote_are_counted_apart() -> None:
    old = [*sized(600), *(msgspec.structs.replace(row, operation="compaction") for row in sized(700, 9000))]
    totals = JobTotals()
    totals.add(Swap(old, sized(10_300), RESULT))
    outcome = totals.outcome("done")
    assert (outcome.input_sizes, outcome.merged_again) == ({512: 2, 8192: 1}, {512: 1, 8192: 1})
