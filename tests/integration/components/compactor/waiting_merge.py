"""A merge that waits in its worker until a test continues it."""

from __future__ import annotations

import time
from pathlib import Path

from components.compactor.merge import MergeResult, MergeTask, merge
from components.lib.lake.storage.locations import parse

LONGEST_S = 60.0


def place_of(task: MergeTask) -> Path:
    """Returns the file that says that the worker waits, beside the table's files."""
    return parse(task.outputs[0]).path.parents[1] / "waiting"


def merge_and_wait(task: MergeTask) -> MergeResult:
    """The first time for a table it waits, with its files written, until it is ended or the file is removed."""
    result = merge(task)
    marker = place_of(task)
    if not marker.exists():
        marker.touch()
        end = time.monotonic() + LONGEST_S
        while marker.exists() and time.monotonic() < end:
            time.sleep(0.02)
    return result
