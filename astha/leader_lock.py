"""A file lock of the leader: a successor on the same machine learns at once that the leader's process has ended.

The file contains the machine's boot id and the leader's name in the lease. A process writes its name while it has the
lock, and removes it before it releases the lock. So if the lock is free and the file has the name of the lease's
holder, that process has ended without releasing anything: the kernel releases the locks of a process that ends, however
it ends. The boot id excludes a directory that several machines share, where a free lock may prove nothing.

It only shortens the wait for the lease to expire. A lock that can't be had costs nothing else.

`lock_directory` returns where the file is by default: a directory of this user and of one registry, below the runtime
directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock

import structlog

log = structlog.get_logger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_BYTES = 4096


class LeaderLock:
    """The methods block for as long as the file system does: call them from a thread, or from several."""

    def __init__(self, directory: Path, group: str, holder: str, boot_id: str | None = None) -> None:
        self.path = directory / f"{group}.leader"
        self._holder = holder
        self._boot_id = _this_boot() if boot_id is None else boot_id
        self._file = -1
        self._ended: str | None = None  # the last holder that is known to have ended
        self._reported = False
        self._mutex = Lock()

    @property
    def held(self) -> bool:
        return self._file >= 0

    def take(self) -> bool:
        """Returns whether this process has the lock, with its name in the file. Taking it again does nothing, unless
        the file was deleted, for example by a cleaner of temporary files.
        """
        with self._mutex:
            if self.held and os.fstat(self._file).st_nlink == 0:
                self._release()
            return self.held or self._lock(None)

    def take_from(self, holder: str) -> bool:
        """Returns whether the process with this name in the lease has ended. If so, this process has its lock."""
        with self._mutex:
            if holder == self._ended:
                return True  # the lease could not be taken the last time
            self._release()
            if not self.held and self.looks_free() and self._lock(holder):
                self._ended = holder
                return True
            return False

    def looks_free(self) -> bool:
        """Returns whether no process has the lock at this moment. Does not open the file for writing, and so wakes no
        other standby that watches it.
        """
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def release(self) -> bool:
        """Returns whether this process has no lock any more."""
        with self._mutex:
            self._release()
            return not self.held

    def _release(self) -> None:
        """Removes the name first: a free lock with the name of a running process would make it appear to have ended."""
        if not self.held:
            return
        try:
            os.ftruncate(self._file, 0)
        except OSError as error:
            log.warning("leader's lock not released before the process ends", file=str(self.path), error=str(error))
            return
        os.close(self._file)
        self._file = -1

    def _lock(self, of_holder: str | None) -> bool:
        if not self._boot_id:
            return False
        try:
            file = os.open(self.path, _OPEN_FLAGS, 0o600)
        except OSError as error:
            self._report(error)
            return False
        try:
            if self._is_free(file) and (of_holder is None or _content(file) == self._text(of_holder)):
                self._write(file)
                self._file, file = file, -1
                return True
        except OSError as error:
            self._report(error)
        finally:
            if file >= 0:
                os.close(file)
        return False

    def _is_free(self, file: int) -> bool:
        """Locks the file, unless another process has it or it belongs to another user."""
        if os.fstat(file).st_uid != os.geteuid():
            raise PermissionError("the file belongs to another user")
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def _write(self, file: int) -> None:
        os.ftruncate(file, 0)
        os.pwrite(file, self._text(self._holder), 0)

    def _text(self, holder: str) -> bytes:
        return f"{self._boot_id}\n{holder}\n".encode()

    def _report(self, error: OSError) -> None:
        if not self._reported:
            self._reported = True
            log.warning("no lock of the leader: a successor waits for the lease", reason=str(error))


def lock_directory(registry: str) -> Path | None:
    """Returns the directory for the locks of daemons on this registry, and creates it. Returns None if another user
    could write to it. `registry` is the registry's address, without a password.
    """
    base = _runtime_directory()
    directory = base / hashlib.sha256(registry.encode()).hexdigest()[:16]
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        usable = all(_is_private(path) for path in (base, directory))
    except OSError as error:
        log.warning("no directory for the leader's lock: a successor waits for the lease", reason=str(error))
        return None
    if not usable:
        log.warning("other users can write to the directory of the leader's lock: not used", directory=str(base))
    return directory if usable else None


def _runtime_directory() -> Path:
    if of_unit := os.environ.get("RUNTIME_DIRECTORY"):  # systemd's; several are separated by colons
        return Path(of_unit.split(":")[0])
    if of_user := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(of_user) / "astha"
    return Path(tempfile.gettempdir()) / f"astha-{os.geteuid()}"


def _is_private(path: Path) -> bool:
    found = path.lstat()
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not shared


def _content(file: int) -> bytes:
    return os.pread(file, _MOST_BYTES, 0)


def _this_boot() -> str:
    """Returns an empty text where there is no boot id: then no lock is taken."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
