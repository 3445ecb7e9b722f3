"""Local files that appear whole or not at all, and survive a power failure once written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from components.lib.lake.storage.output_streams import Writable
from registry.private_files import PRIVATE, Modes, make_directories, opener

T = TypeVar("T")

_PARTIAL = ".partial"  # a fixed suffix, so that `delete` finds what an interrupted writer has left


def write(path: Path, fill: Callable[[Writable], T], modes: Modes = PRIVATE) -> T:
    """An error of ``fill`` leaves no file. A killed process may leave a partial one, which `delete` removes too."""
    made = [directory.parent for directory in make_directories(path.parent, modes.directory)]
    partial = path.with_name(path.name + _PARTIAL)
    try:
        with open(partial, "wb", opener=opener(modes.file)) as sink:
            result = fill(sink)
            sink.flush()
            os.fsync(sink.fileno())
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    for directory in (path.parent, *made):
        _sync(directory)
    return result


def read_range(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as source:
        source.seek(start)
        return source.read(length)


def delete(paths: Iterable[Path]) -> None:
    """Leaves directories in place: another writer may be about to use them."""
    touched = set()
    for path in paths:
        for name in (path, path.with_name(path.name + _PARTIAL)):
            with contextlib.suppress(FileNotFoundError):
                name.unlink()
                touched.add(path.parent)
    for directory in touched:
        with contextlib.suppress(FileNotFoundError):
            _sync(directory)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
