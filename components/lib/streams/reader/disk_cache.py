"""A block cache on local disk. It survives a restart, may be deleted at any time, and never fails a read.

Each process locks a subdirectory of its own. A directory or lock that is a symbolic link or belongs to another user is
not used. Reads verify a file by its name and by the block's checksum; nothing is synced.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import structlog

from registry.private_files import DIRECTORY, FILE, make_directories, opener

log = structlog.get_logger(__name__)

A = TypeVar("A", bound=Hashable)
T = TypeVar("T")

_PAGE = 4096  # disk usage is rounded up to pages
_MAGIC = b"ASTHABLK"
_PARTIAL = ".partial"
_MAX_QUEUED_BYTES = 64 << 20  # further blocks are not cached on disk
_WRITES_PER_TURN = 64  # per call to a thread
_MAX_CACHES = 64  # processes that share one directory


class _PendingWrite(NamedTuple):
    name: str
    header: bytes
    data: bytes

    @property
    def length(self) -> int:
        return len(self.header) + len(self.data)


class DiskBlockCache:
    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Claims a subdirectory and lists its files: create it in a thread. Raises OSError if none is free."""
        self.max_bytes = max_bytes
        self.failures = 0
        self._lock, self.directory = _claim_directory(directory)
        self._entries: OrderedDict[str, int] = OrderedDict()
        self._size = 0
        self._queue: asyncio.Queue[_PendingWrite | None] = asyncio.Queue()
        self._queued_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._load()

    @property
    def size_bytes(self) -> int:
        return self._size

    def __len__(self) -> int:
        return len(self._entries)

    async def read(self, addresses: Sequence[A], decode: Callable[[A, memoryview], T]) -> dict[A, T | Exception]:
        """Returns the cached blocks, decoded in a thread; `str(address)` names them. For a damaged block the value is
        the exception of `decode`: call `drop` for it.
        """
        wanted = [(address, str(address)) for address in addresses]
        names = {address: name for address, text in wanted if (name := _name(text)) in self._entries}
        if not names:
            return {}
        found = await asyncio.to_thread(self._read, names, decode)
        for address, name in names.items():
            if address in found:
                self._entries.move_to_end(name)
            else:
                self._remove(name)
        return found

    def write(self, address: Hashable, data: bytes) -> None:
        """Queues the block to be written; never waits."""
        text = str(address)
        name = _name(text)
        if (
            name in self._entries
            or self._queued_bytes + len(data) > _MAX_QUEUED_BYTES
            or _size_on_disk(len(data)) > self.max_bytes
        ):
            return
        self._queued_bytes += len(data)
        self._queue.put_nowait(_PendingWrite(name, _file_header(text), data))
        if self._task is None:
            self._task = asyncio.create_task(self._write_loop(), name="segment cache on disk")

    def drop(self, address: Hashable) -> None:
        name = _name(str(address))
        self._remove(name)
        with suppress(OSError):
            self._path(name).unlink()

    async def flush(self) -> None:
        """Returns when all queued blocks are written or have failed."""
        await self._queue.join()

    async def close(self) -> None:
        """Writes queued blocks, and unlocks the directory."""
        if self._task is not None:
            self._queue.put_nowait(None)
            await self._task
            self._task = None
        self._lock.close()

    async def _write_loop(self) -> None:
        while True:
            items = [await self._queue.get()]
            while len(items) < _WRITES_PER_TURN and not self._queue.empty():
                items.append(self._queue.get_nowait())
            writes = [item for item in items if item is not None]
            evicted = self._choose_evictions(writes)
            written = await asyncio.to_thread(self._write, writes, evicted)
            for name in evicted:
                self._remove(name)
            for write in written:
                self._insert(write.name, write.length)
            self._queued_bytes -= sum(len(write.data) for write in writes)
            for _ in items:
                self._queue.task_done()
            if len(writes) < len(items):
                return

    def _choose_evictions(self, writes: Sequence[_PendingWrite]) -> list[str]:
        """Returns the least recently read blocks that must go to make space."""
        needed = self._size + sum(_size_on_disk(write.length) for write in writes) - self.max_bytes
        evicted = []
        for name, size in self._entries.items():
            if needed <= 0:
                break
            evicted.append(name)
            needed -= size
        return evicted

    def _write(self, writes: Sequence[_PendingWrite], evicted: Sequence[str]) -> list[_PendingWrite]:
        for name in evicted:
            with suppress(OSError):
                self._path(name).unlink()
        written = []
        for write in writes:
            path = self._path(write.name)
            partial = path.with_name(write.name + _PARTIAL)
            try:
                path.parent.mkdir(DIRECTORY, exist_ok=True)
                with open(partial, "wb", opener=opener()) as file:
                    file.write(write.header)
                    file.write(write.data)
                partial.rename(path)
            except OSError as error:
                self.failures += 1
                with suppress(OSError):
                    partial.unlink()
                log.warning("block not cached on disk", directory=str(self.directory), error=str(error))
            else:
                written.append(write)
        return written

    def _read(self, names: Mapping[A, str], decode: Callable[[A, memoryview], T]) -> dict[A, T | Exception]:
        found: dict[A, T | Exception] = {}
        for address, name in names.items():
            path, header = self._path(name), _file_header(str(address))
            try:
                data = path.read_bytes()
                os.utime(path)  # keeps the order of use across a restart
            except OSError:
                continue
            if data.startswith(header):
                try:
                    found[address] = decode(address, memoryview(data)[len(header) :])
                except Exception as error:
                    found[address] = error
        return found

    def _load(self) -> None:
        """Adopts the files of an earlier process, the least recently read first."""
        files = []
        for path in self.directory.glob("??/*"):
            if path.name.endswith(_PARTIAL):
                path.unlink(missing_ok=True)
            else:
                with suppress(OSError):
                    files.append((path.stat().st_mtime_ns, path.name, path.stat().st_size))
        for _, name, size in sorted(files):
            self._insert(name, size)
        while self._size > self.max_bytes:
            name = next(iter(self._entries))
            self._remove(name)
            with suppress(OSError):
                self._path(name).unlink()

    def _insert(self, name: str, length: int) -> None:
        self._remove(name)
        self._entries[name] = _size_on_disk(length)
        self._size += _size_on_disk(length)

    def _remove(self, name: str) -> None:
        self._size -= self._entries.pop(name, 0)

    def _path(self, name: str) -> Path:
        return self.directory / name[:2] / name


def _name(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _file_header(text: str) -> bytes:
    """The header of a file, which names its block."""
    named = text.encode()
    return _MAGIC + len(named).to_bytes(4, "little") + named


def _size_on_disk(length: int) -> int:
    return -(-length // _PAGE) * _PAGE


def _claim_directory(directory: Path) -> tuple[IO[bytes], Path]:
    make_directories(directory)
    foreign = 0
    for number in range(_MAX_CACHES):
        candidate = directory / f"{number:02}"
        with suppress(FileExistsError):
            candidate.mkdir(DIRECTORY)
        lock = _try_lock(candidate)
        if lock is not None:
            return lock, candidate
        foreign += not _is_ours(candidate.lstat(), stat.S_ISDIR)
    others = f", {foreign} of them another user's or symbolic links" if foreign else ""
    raise OSError(f"{directory}: {_MAX_CACHES} caches exist or are in use already{others}: choose another directory")


def _try_lock(candidate: Path) -> IO[bytes] | None:
    """Returns None if another process has locked it, or if it is not ours."""
    if not _is_ours(candidate.lstat(), stat.S_ISDIR):
        return None
    try:
        descriptor = os.open(candidate / "lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EACCES):  # a symbolic link, or another user's
            return None
        raise
    lock = os.fdopen(descriptor, "wb")
    try:
        if _is_ours(os.fstat(lock.fileno()), stat.S_ISREG):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    except BlockingIOError:
        pass
    lock.close()
    return None


def _is_ours(found: os.stat_result, kind: Callable[[int], bool]) -> bool:
    return kind(found.st_mode) and found.st_uid == os.geteuid()
