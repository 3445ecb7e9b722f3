"""Merges of damaged files: all rows, or an error that names the file, or a dead worker that `inspect` explains."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from components.compactor.merge import inspect
from components.lib.lake.isolation import ChildDied, ChildPool
from tests.fuzz.budget import seconds, seed
from tests.fuzz.merged import ROWS, SORTED, STRATEGIES, Case
from tests.fuzz.parquet_mutations import SCHEMA, damaged, stored

LIMIT_S = 120.0


@pytest.mark.slow
def test_one_damaged_file_among_three(tmp_path: Path) -> None:
    chance, end = random.Random(seed()), time.monotonic() + seconds(5.0)
    children = ChildPool(1, memory_bytes=1 << 30)
    counts: Counter[str] = Counter()
    corpora = {
        strategy: [stored(SORTED if strategy == "sort" else SCHEMA, number * 100) for number in range(3)]
        for strategy in STRATEGIES
    }
    try:
        while time.monotonic() < end or not (counts["named"] and counts["merged"]):
            strategy = chance.choice(STRATEGIES)
            files = list(corpora[strategy])
            files[1] = damaged(files[1], chance, pages=chance.random() < 0.3)
            paths = [tmp_path / f"in-{number}.parquet" for number in range(3)]
            for path, data in zip(paths, files, strict=True):
                path.write_bytes(data)
            case = Case(str(tmp_path), [str(path) for path in paths], [len(data) for data in files], strategy)
            counts[_outcome(case, children)] += 1
            for path in tmp_path.iterdir():
                path.unlink()
    finally:
        children.close()
        print(dict(counts))  # noqa: T201  (shown when it fails)


def _outcome(case: Case, children: ChildPool) -> str:
    """Fails for every other outcome: an error of another kind is `ChildRaised`."""
    bad = Path(case.paths[1]).as_uri()
    try:
        answer = children.call("tests.fuzz.merged:merge_case", msgspec.msgpack.encode(case), limit_s=LIMIT_S)
    except ChildDied:
        assert [file.path for file in inspect(case.task())] == [bad]
        return "ended"
    if answer == b"memory":
        return "memory"
    if answer.startswith(b"file:"):
        assert answer.decode() == bad
        return "named"
    assert int(answer) == 3 * ROWS
    return "merged"
