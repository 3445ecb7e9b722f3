"""Files and directories that others can't read, unless a mode says that they may. What exists keeps its mode."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

FILE = 0o600
DIRECTORY = 0o700


class Modes(NamedTuple):
    """Of what is created."""

    file: int = FILE
    directory: int = DIRECTORY


PRIVATE = Modes()


def create_file(path: Path, mode: int = FILE) -> bool:
    """Whether it was created: False if there is one already. OSError if it can't be."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        return False
    try:
        os.fchmod(descriptor, mode)  # whatever the umask
    finally:
        os.close(descriptor)
    return True


def opener(mode: int = FILE) -> Callable[[str, int], int]:
    """For `open`: a new file, or what is left of one, gets that mode. No symbolic link is followed."""

    def opened(path: str, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:  # the umask
                os.fchmod(descriptor, mode)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    return opened


def make_directories(path: Path, mode: int = DIRECTORY) -> list[Path]:
    """Those that were missing, the uppermost first."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    missing.reverse()
    for directory in missing:
        try:
            directory.mkdir(mode)
        except FileExistsError:
            if not directory.is_dir():
                raise
            continue  # another process was quicker
        _apply(directory, mode)
    return missing


def _apply(directory: Path, mode: int) -> None:
    found = stat.S_IMODE(directory.stat().st_mode)
    wanted = (found & ~0o777) | mode  # what it has inherited, such as the group's bit, stays
    if found != wanted:
        directory.chmod(wanted)
