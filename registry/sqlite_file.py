"""Which file a SQLite connection has open, and what to do when another one has taken its place.

A connection stays on the file that it opened, also after that was deleted or another was moved over it: what it writes
then is lost. So each connection remembers its file, and the pool compares it with the path at each checkout.

The write-ahead log is found by its name. A log that was left behind by the file that is gone would be replayed into
the one that took its place, and overwrite it. See https://sqlite.org/howtocorrupt.html, 1.4 and 4.1.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)


class FileIdentity(msgspec.Struct, frozen=True):
    """Which file it is, whatever its name. A copy or a restored backup is another file."""

    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        """OSError if there is none."""
        found = path.stat()
        return cls(found.st_dev, found.st_ino)

    def __str__(self) -> str:
        return f"{self.device:x}:{self.inode:x}"


_held: dict[Path, OpenFile] = {}
"""Files that a connection of this process keeps open for as long as it runs: by these, every other one finds out."""


class OpenFile(msgspec.Struct, frozen=True):
    """A database file, and the write-ahead log beside it, as a connection has opened them."""

    path: Path
    identity: FileIdentity
    wal: FileIdentity | None = None

    @classmethod
    def of(cls, path: Path) -> OpenFile:
        """OSError if there is no such file."""
        return cls(path, FileIdentity.of(path), _identity(_beside(path, "-wal")))

    @property
    def current(self) -> bool:
        """Whether the path still leads to this file."""
        return _identity(self.path) == self.identity

    def hold(self) -> None:
        """The caller keeps its connection open until `release`."""
        _held[self.path.absolute()] = self

    def release(self) -> None:
        if _held.get(self.path.absolute()) == self:
            del _held[self.path.absolute()]

    def set_aside_wal(self) -> None:
        """Rename the write-ahead log of this file, if another file has taken its place and the log is still there.

        Call it only while the connection is open: until then no other log can have the same inode. Processes that
        still have the old file open are not disturbed, because they hold the log by its descriptor.
        """
        wal = _beside(self.path, "-wal")
        if self.wal is None or _identity(self.path) in (None, self.identity) or _identity(wal) != self.wal:
            return
        for suffix in ("-wal", "-shm"):
            stale = _beside(self.path, suffix)
            with contextlib.suppress(FileNotFoundError):  # another connection was quicker
                stale.rename(stale.with_name(f"{stale.name}.of-{self.identity}"))
        log.warning(
            "%s was replaced, but the write-ahead log of the file before it was left there: it is now %s.of-%s",
            self.path, wal, self.identity,
        )  # fmt: skip


def set_aside_stale_wal(path: Path) -> None:
    """Before a connection is opened: see `OpenFile.set_aside_wal`."""
    held = _held.get(path.absolute())
    if held is not None:
        held.set_aside_wal()


def _beside(path: Path, suffix: str) -> Path:
    """SQLite follows links before it names its log."""
    real = path.resolve()
    return real.with_name(real.name + suffix)


def _identity(path: Path) -> FileIdentity | None:
    try:
        return FileIdentity.of(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
