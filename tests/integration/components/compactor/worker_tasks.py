"""What workers run in tests: a merge if there are inputs, otherwise the task that the partition path names.

Each attempt is recorded beside the first output.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from components.compactor.merge import MergeFailed, MergeResult, MergeTask, merge
from components.lib.lake.storage.objects import StorageUnavailable


def run_task(task: MergeTask) -> MergeResult:
    if task.inputs:
        return merge(task)
    place = Path(task.outputs[0].removeprefix("file://"))
    with place.with_suffix(".attempts").open("a") as notes:
        notes.write(f"{os.getpid()}\n")
    _TASKS[task.partition_path](place)
    return MergeResult(
        files=[], rows_in=1, rows_out=1, checksums_in={}, checksums_out={}, bytes_read=0, bytes_written=os.getpid(),
        strategy="copy", why=task.partition_path, seconds={},
    )  # fmt: skip


def attempts(task: MergeTask) -> list[int]:
    """Returns the processes that have begun it."""
    notes = Path(task.outputs[0].removeprefix("file://")).with_suffix(".attempts")
    return [int(line) for line in notes.read_text().split()] if notes.exists() else []


def written(task: MergeTask) -> Path:
    return Path(task.outputs[0].removeprefix("file://"))


def _write(place: Path) -> None:
    place.write_text("whole")


def _write_slowly(place: Path) -> None:
    """Writes until it is interrupted."""
    for number in range(6_000):
        place.write_text(str(number))
        time.sleep(0.01)


def _ignore_everything(place: Path) -> None:
    """Like a library that swallows interrupts."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            _write_slowly(place)
        except BaseException:  # noqa: S112
            continue


def _die_once(place: Path) -> None:
    if len(place.with_suffix(".attempts").read_text().split()) == 1:
        _write_slowly(place)
    _write(place)


def _die(_place: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _crash(_place: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _fill_memory(_place: Path) -> None:
    raise MemoryError("no room for 3 rows")


def _refuse(_place: Path) -> None:
    raise MergeFailed("file:///a.parquet: not what its row says")


def _lose_storage(_place: Path) -> None:
    raise StorageUnavailable("s3://lake: no answer")


def _stumble(_place: Path) -> None:
    raise ZeroDivisionError("a mistake of ours")


_TASKS = {
    "write": _write,
    "write slowly": _write_slowly,
    "ignore everything": _ignore_everything,
    "die once": _die_once,
    "die": _die,
    "crash": _crash,
    "fill memory": _fill_memory,
    "refuse": _refuse,
    "lose storage": _lose_storage,
    "stumble": _stumble,
}
