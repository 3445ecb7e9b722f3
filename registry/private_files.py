"""Creates files and directories that other users can't read by default. Existing ones keep their mode."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

FILE = 0o600
DIRECTORY = 0o700


class Modes(NamedTuple):
    """The modes of new files and directories."""

    file: int = FILE
    directory: int = DIRECTORY


PRIVATE = Modes()


def create_file(path: Path, mode: int = FILE) -> bool:
    """Creates an empty file. Returns False if it exists. Raises OSError if it can't be created."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        return False
    try:
        os.fchmod(descriptor, mode)  # regardless of the umask
    finally:
        os.close(descriptor)
    return True


def opener(mode: int = FILE) -> Callable[[str, int], int]:
    """For `open(opener=...)`: sets the mode of a new file, or of one left over. Follows no symbolic link."""

    def opened(path: str, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:  # reduced by the umask
                os.fchmod(descriptor, mode)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    return opened


def make_directories(path: Path, mode: int = DIRECTORY) -> list[Path]:
    """Creates missing directories. Returns them, the uppermost first."""
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
            continue  # another process created it first
        _set_mode(directory, mode)
    return missing


def _set_mode(directory: Path, mode: int) -> None:
    found = stat.S_IMODE(directory.stat().st_mode)
    wanted = (found & ~0o777) | mode  # keeps inherited bits, such as setgid
    if found != wanted:
        directory.chmod(wanted)
