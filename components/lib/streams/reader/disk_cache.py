"""Blocks on local disk: a cache that survives a restart, may be deleted at any time, and never fails a reader.

One process a directory: each takes the first that nobody has locked below the one that it was given. A directory or a
lock that is a symbolic link, or another user's, is not used. What a file holds is checked by whoever reads it, by its
name and by the block's own checksum; nothing here is synced.
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

_PAGE = 4096  # a file takes at least that
_MAGIC = b"ASTHABLK"
_PARTIAL = ".partial"
_WAITING = 64 << 20  # bytes to be written; what comes beyond is not kept on disk
_TOGETHER = 64  # writes in one turn of the thread
_MOST = 64  # processes with a cache below one directory


class _Write(NamedTuple):
    name: str
    entry: bytes
    data: bytes

    @property
    def length(self) -> int:
        return len(self.entry) + len(self.data)


class DiskBlockCache:
    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Takes a directory below, and lists what is in it: make one in a thread. OSError if it can't."""
        self.max_bytes = max_bytes
        self.failures = 0
        self._lock, self.directory = _taken(directory)
        self._held: OrderedDict[str, int] = OrderedDict()
        self._size = 0
        self._queue: asyncio.Queue[_Write | None] = asyncio.Queue()
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None
        self._load()

    @property
    def size_bytes(self) -> int:
        return self._size

    def __len__(self) -> int:
        return len(self._held)

    async def read(self, addresses: Sequence[A], decode: Callable[[A, memoryview], T]) -> dict[A, T | Exception]:
        """Those that are there, decoded by the thread that reads them: ``str`` of an address is its name. If the bytes
        are damaged it is what ``decode`` raised: say so with `drop`.
        """
        wanted = [(address, str(address)) for address in addresses]
        names = {address: name for address, text in wanted if (name := _name(text)) in self._held}
        if not names:
            return {}
        found = await asyncio.to_thread(self._read, names, decode)
        for address, name in names.items():
            if address in found:
                self._held.move_to_end(name)
            else:
                self._forget(name)
        return found

    def write(self, address: Hashable, data: bytes) -> None:
        """Some time later; never waits."""
        text = str(address)
        name = _name(text)
        if name in self._held or self._waiting + len(data) > _WAITING or _room(len(data)) > self.max_bytes:
            return
        self._waiting += len(data)
        self._queue.put_nowait(_Write(name, _entry(text), data))
        if self._task is None:
            self._task = asyncio.create_task(self._write_all(), name="segment cache on disk")

    def drop(self, address: Hashable) -> None:
        name = _name(str(address))
        self._forget(name)
        with suppress(OSError):
            self._path(name).unlink()

    async def flush(self) -> None:
        """Until everything that waits is written, or given up."""
        await self._queue.join()

    async def close(self) -> None:
        """What still waits is written; the directory is free for another process."""
        if self._task is not None:
            self._queue.put_nowait(None)
            await self._task
            self._task = None
        self._lock.close()

    async def _write_all(self) -> None:
        while True:
            items = [await self._queue.get()]
            while len(items) < _TOGETHER and not self._queue.empty():
                items.append(self._queue.get_nowait())
            writes = [item for item in items if item is not None]
            victims = self._victims(writes)
            written = await asyncio.to_thread(self._write, writes, victims)
            for name in victims:
                self._forget(name)
            for write in written:
                self._hold(write.name, write.length)
            self._waiting -= sum(len(write.data) for write in writes)
            for _ in items:
                self._queue.task_done()
            if len(writes) < len(items):
                return

    def _victims(self, writes: Sequence[_Write]) -> list[str]:
        """The least recently read, so many that there is room."""
        needed = self._size + sum(_room(write.length) for write in writes) - self.max_bytes
        victims = []
        for name, size in self._held.items():
            if needed <= 0:
                break
            victims.append(name)
            needed -= size
        return victims

    def _write(self, writes: Sequence[_Write], victims: Sequence[str]) -> list[_Write]:
        for name in victims:
            with suppress(OSError):
                self._path(name).unlink()
        written = []
        for write in writes:
            path = self._path(write.name)
            partial = path.with_name(write.name + _PARTIAL)
            try:
                path.parent.mkdir(DIRECTORY, exist_ok=True)
                with open(partial, "wb", opener=opener()) as file:
                    file.write(write.entry)
                    file.write(write.data)
                partial.rename(path)
            except OSError as error:
                self.failures += 1
                with suppress(OSError):
                    partial.unlink()
                log.warning("a block can't be cached on disk", directory=str(self.directory), error=str(error))
            else:
                written.append(write)
        return written

    def _read(self, names: Mapping[A, str], decode: Callable[[A, memoryview], T]) -> dict[A, T | Exception]:
        found: dict[A, T | Exception] = {}
        for address, name in names.items():
            path, entry = self._path(name), _entry(str(address))
            try:
                data = path.read_bytes()
                os.utime(path)  # the order of use, for the next start
            except OSError:
                continue
            if data.startswith(entry):
                try:
                    found[address] = decode(address, memoryview(data)[len(entry) :])
                except Exception as error:
                    found[address] = error
        return found

    def _load(self) -> None:
        """What an earlier process has left, the least recently read first."""
        files = []
        for path in self.directory.glob("??/*"):
            if path.name.endswith(_PARTIAL):
                path.unlink(missing_ok=True)
            else:
                with suppress(OSError):
                    files.append((path.stat().st_mtime_ns, path.name, path.stat().st_size))
        for _, name, size in sorted(files):
            self._hold(name, size)
        while self._size > self.max_bytes:
            name = next(iter(self._held))
            self._forget(name)
            with suppress(OSError):
                self._path(name).unlink()

    def _hold(self, name: str, length: int) -> None:
        self._forget(name)
        self._held[name] = _room(length)
        self._size += _room(length)

    def _forget(self, name: str) -> None:
        self._size -= self._held.pop(name, 0)

    def _path(self, name: str) -> Path:
        return self.directory / name[:2] / name


def _name(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _entry(text: str) -> bytes:
    """What a file begins with: whose it is."""
    named = text.encode()
    return _MAGIC + len(named).to_bytes(4, "little") + named


def _room(length: int) -> int:
    return -(-length // _PAGE) * _PAGE


def _taken(directory: Path) -> tuple[IO[bytes], Path]:
    make_directories(directory)
    foreign = 0
    for number in range(_MOST):
        place = directory / f"{number:02}"
        with suppress(FileExistsError):
            place.mkdir(DIRECTORY)
        lock = _locked(place)
        if lock is not None:
            return lock, place
        foreign += not _ours(place.lstat(), stat.S_ISDIR)
    others = f", {foreign} of them another user's or symbolic links" if foreign else ""
    raise OSError(f"{directory}: {_MOST} caches are there or in use already{others}: choose another directory")


def _locked(place: Path) -> IO[bytes] | None:
    """None if another process has it, or if it is not ours."""
    if not _ours(place.lstat(), stat.S_ISDIR):
        return None
    try:
        descriptor = os.open(place / "lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EACCES):  # a symbolic link, or another user's
            return None
        raise
    lock = os.fdopen(descriptor, "wb")
    try:
        if _ours(os.fstat(lock.fileno()), stat.S_ISREG):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    except BlockingIOError:
        pass
    lock.close()
    return None


def _ours(found: os.stat_result, kind: Callable[[int], bool]) -> bool:
    return kind(found.st_mode) and found.st_uid == os.geteuid()
