"""Which file a SQLite connection has open, and what to do when that file has been replaced.

A connection keeps the file that it opened, even after the file was deleted or another was moved over it: its later
writes are lost. So each connection remembers its file, and the pool compares it with the path at each checkout.

SQLite finds the write-ahead log by its name. A log left behind by the replaced file would be replayed into the new one
and overwrite it. See https://sqlite.org/howtocorrupt.html, 1.4 and 4.1.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import structlog

log = structlog.get_logger(__name__)


class FileIdentity(msgspec.Struct, frozen=True):
    """Identifies a file independently of its name. A copy or a restored backup is another file."""

    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        """Raises OSError if there is no such file."""
        found = path.stat()
        return cls(found.st_dev, found.st_ino)

    def __str__(self) -> str:
        return f"{self.device:x}:{self.inode:x}"


_held: dict[Path, OpenFile] = {}
"""Files that a long-lived connection of this process keeps open, so that new connections can detect a replacement."""


class OpenFile(msgspec.Struct, frozen=True):
    """A database file and its write-ahead log, as a connection has opened them."""

    path: Path
    identity: FileIdentity
    wal: FileIdentity | None = None

    @classmethod
    def of(cls, path: Path) -> OpenFile:
        """Raises OSError if there is no such file."""
        return cls(path, FileIdentity.of(path), _identity(_beside(path, "-wal")))

    @property
    def current(self) -> bool:
        """Whether the path still leads to this file."""
        return _identity(self.path) == self.identity

    def hold(self) -> None:
        """Registers the file as open. The caller keeps its connection open until `release`."""
        _held[self.path.absolute()] = self

    def release(self) -> None:
        if _held.get(self.path.absolute()) == self:
            del _held[self.path.absolute()]

    def set_aside_wal(self) -> None:
        """Renames the write-ahead log of this file if the file has been replaced and the log was left behind.

        Call it only while the connection is open, so that no other log can have the same inode. Processes that still
        have the old file open are not affected, because they hold the log by its descriptor.
        """
        wal = _beside(self.path, "-wal")
        if self.wal is None or _identity(self.path) in (None, self.identity) or _identity(wal) != self.wal:
            return
        for suffix in ("-wal", "-shm"):
            stale = _beside(self.path, suffix)
            with contextlib.suppress(FileNotFoundError):  # another connection was faster
                stale.rename(stale.with_name(f"{stale.name}.of-{self.identity}"))
        log.warning(
            "stale write-ahead log of a replaced registry file renamed",
            file=str(self.path), renamed_to=f"{wal}.of-{self.identity}",
        )  # fmt: skip


def set_aside_stale_wal(path: Path) -> None:
    """Call before a connection is opened. See `OpenFile.set_aside_wal`."""
    held = _held.get(path.absolute())
    if held is not None:
        held.set_aside_wal()


def _beside(path: Path, suffix: str) -> Path:
    """SQLite resolves symbolic links before it names its log."""
    real = path.resolve()
    return real.with_name(real.name + suffix)


def _identity(path: Path) -> FileIdentity | None:
    try:
        return FileIdentity.of(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
