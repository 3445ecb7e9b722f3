"""Finds the bad files of a group after its merge has crashed, hung or failed, by reading each of them alone.

Every file is read in a child process, as a merge would read it. A file that kills or hangs its reader is bad, and the
worker continues with the next.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable

import msgspec

from components.compactor.merge.checksums import Checksums
from components.compactor.merge.engine import engine_of_task, known_ids, versions_of
from components.compactor.merge.footer import Footer
from components.compactor.merge.footer_stats import FooterStats
from components.compactor.merge.inputs import decode, fetch
from components.compactor.merge.projection import Projection
from components.compactor.merge.row_group_copy import read_copied_statistics, why_not_copy
from components.compactor.merge.task import BadInput, MergeInput, MergeTask
from components.lib.lake.isolation import ChildDied, ChildPool, ChildRaised
from components.lib.lake.storage.objects import ObjectMissing, Objects

_LIMIT_S = 60.0  # per file, plus its size by
_BYTES_PER_S = 1 << 20
_READ_ONE = f"{__name__}:read_one"


class UnmergeableFile(msgspec.Struct, frozen=True):
    """A file that can't be merged, alone or with others."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


def inspect(task: MergeTask, *, clock: Callable[[], float] = time.monotonic) -> list[UnmergeableFile]:
    """Returns the bad inputs of the task; writes nothing. Blocks, and needs a thread without an event loop.

    Files that do not fit into the task's time limit are not inspected. Raises StorageError and ChildNotStarted.
    """
    end = None if task.limit_s is None else clock() + task.limit_s
    children = ChildPool(1, memory_bytes=task.memory_bytes)
    objects = Objects(task.lake)
    found = []
    try:
        with asyncio.Runner() as runner:
            for file in task.inputs:
                if end is not None and clock() > end:
                    break
                try:
                    data = runner.run(fetch(objects, file))
                    _read_in_child(task, file, data, children)
                except BadInput as error:
                    found.append(UnmergeableFile(file.path, error.reason))
                except ObjectMissing:
                    found.append(UnmergeableFile(file.path, "does not exist: restore it, or remove it from its table"))
    finally:
        children.close()
    return found


def read_one(argument: bytes) -> bytes:
    """Runs in the child: does what a merge does with the bytes of one input."""
    task, data = pickle.loads(argument)  # noqa: S301  (from the parent)
    (file,) = task.inputs
    versions = versions_of(task)
    current, version = next(iter(versions.values())), versions[file.schema_version]
    footer = Footer.of(data, len(data), file.path)
    columns = FooterStats.of([(footer, version)], current)
    if columns.decoded_bytes > task.memory_bytes:
        raise BadInput(
            file.path, f"needs about {columns.decoded_bytes >> 20:,} MiB by its footer, and a task may hold "
            f"{task.memory_bytes >> 20:,} MiB",
        )  # fmt: skip
    sums = Checksums(current)
    hints = columns.hints.dictionary_typed
    projection = Projection(current, version, hints, known_ids(task, versions.values()))
    for rows in decode(data, file, projection, suspect=True):
        sums.add(rows)
    if why_not_copy(footer, current, engine_of_task(task, current)) is None:
        read_copied_statistics(footer, current, file.path)
    return b""


def _read_in_child(task: MergeTask, file: MergeInput, data: bytes, children: ChildPool) -> None:
    alone = msgspec.structs.replace(task, inputs=(file,), outputs=(), lake=type(task.lake)())
    limit_s = _LIMIT_S + len(data) / _BYTES_PER_S
    try:
        children.call(_READ_ONE, pickle.dumps((alone, data), protocol=5), limit_s=limit_s)
    except ChildRaised as error:
        reason = str(error).removeprefix(f"{file.path} ")
        raise BadInput(
            file.path, reason if error.kind == "BadInput" else f"can't be read: {error.kind}: {reason}"
        ) from error
    except ChildDied as error:
        raise BadInput(file.path, f"is damaged: its reader crashes: {error}") from error
