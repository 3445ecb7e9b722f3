"""Runs `astha insert --id` once per point in a process of its own, and kills that process at the point.

python -m tests.integration.components.lib.storage_manager.killed_inserts URL A.jsonl B.jsonl

One import for all points: each one is a fork. The tables are shop.POINT.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest

import components.commands.insert as command
from components.lib.lake.storage.objects import Objects
from registry.stores.sql.files import SqlFiles

POINTS = {
    "before_first_registration": ("before register", 1),
    "first_registered": ("register", 1),
    "second_file_written": ("write", 2),
    "second_registered": ("register", 2),
    "before_the_answer": ("answer", 1),
}
"""Which call, and its number, the process does not survive."""


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the process outlived SIGKILL")


def kill_at(point: str) -> None:
    """Wraps the calls, so that the one of the point ends the process."""
    fatal, number = POINTS[point]
    seen = dict.fromkeys(("write", "before register", "register", "answer"), 0)

    def reached(step: str) -> None:
        seen[step] += 1
        if (step, seen[step]) == (fatal, number):
            die()

    def wrapped(call: Callable[..., Awaitable[Any]], after: str, before: str | None = None) -> Any:
        async def step(*arguments: Any, **options: Any) -> Any:
            if before is not None:
                reached(before)
            result = await call(*arguments, **options)
            reached(after)
            return result

        return step

    patch = pytest.MonkeyPatch()
    patch.setattr(Objects, "write", wrapped(Objects.write, "write"))
    patch.setattr(SqlFiles, "register_files", wrapped(SqlFiles.register_files, "register", "before register"))
    patch.setattr(command, "print_json", lambda _: reached("answer"))


def main(url: str, *files: str) -> None:
    for point in POINTS:
        child = os.fork()
        if child == 0:
            kill_at(point)
            command.insert_command.main(["--registry", url, f"shop.{point}", *files, "--id", "monday", "--json"])
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(point, os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
