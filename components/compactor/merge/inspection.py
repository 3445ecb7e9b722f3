"""Which files of a group are at fault, when its merge has crashed, hung, or failed: each is read alone.

Every file is read in a child process, as a merge would read it: one that ends or hangs its reader is named, and the
worker goes on to the next.
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
from components.compactor.merge.footer_stats import Columns
from components.compactor.merge.inputs import decode, fetch
from components.compactor.merge.projection import Projection
from components.compactor.merge.row_group_copy import read_copied_statistics, why_not_copy
from components.compactor.merge.task import BadInput, MergeInput, MergeTask
from components.lib.lake.isolation import ChildDied, ChildPool, ChildRaised
from components.lib.lake.storage.objects import ObjectMissing, Objects

_LIMIT_S = 60.0  # for a file, and a second more for each
_SLOWEST = 1 << 20  # bytes
_READ_ONE = f"{__name__}:read_one"


class BadFile(msgspec.Struct, frozen=True):
    """A file that can't be merged, alone or with others."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


def inspect(task: MergeTask, *, clock: Callable[[], float] = time.monotonic) -> list[BadFile]:
    """The bad ones among the task's inputs; nothing is written. Blocks, and needs a thread without an event loop.

    Files that the task's time is too short for are not looked at. StorageError and ChildNotStarted pass as they are.
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
                    found.append(BadFile(file.path, error.reason))
                except ObjectMissing:
                    found.append(BadFile(file.path, "does not exist: restore it, or remove it from its table"))
    finally:
        children.close()
    return found


def read_one(argument: bytes) -> bytes:
    """Runs in the child: whatever a merge does with the bytes of one input."""
    task, data = pickle.loads(argument)  # noqa: S301  (from the parent)
    (file,) = task.inputs
    versions = versions_of(task)
    current, version = next(iter(versions.values())), versions[file.schema_version]
    footer = Footer.of(data, len(data), file.path)
    columns = Columns.of([(footer, version)], current)
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
    limit_s = _LIMIT_S + len(data) / _SLOWEST
    try:
        children.call(_READ_ONE, pickle.dumps((alone, data), protocol=5), limit_s=limit_s)
    except ChildRaised as error:
        told = str(error).removeprefix(f"{file.path} ")
        raise BadInput(
            file.path, told if error.kind == "BadInput" else f"can't be read: {error.kind}: {told}"
        ) from error
    except ChildDied as error:
        raise BadInput(file.path, f"is damaged: whoever reads it does not survive it: {error}") from error
