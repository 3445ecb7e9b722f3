"""Where a file's bytes go while it is written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol


class Writable(Protocol):
    def write(self, data: bytes, /) -> int: ...


class Sink:
    """The least that Arrow and the standard library want of a file that is written from front to back."""

    closed = False

    def __init__(self, write: Callable[[bytes], int]) -> None:
        self._write = write

    def write(self, data: bytes, /) -> int:
        return self._write(data)

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Whoever made the sink does, at the end."""

    def close(self) -> None:
        """Likewise."""


class ChecksummedSink(Sink):
    """Counts and hashes what passes, so that nobody reads the file again for it."""

    def __init__(self, sink: Writable) -> None:
        super().__init__(sink.write)
        self.size = 0
        self._hash = hashlib.sha256()

    def write(self, data: bytes, /) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._write(data)

    def tell(self) -> int:
        return self.size

    def ignore_the_rest(self) -> None:
        """Nobody wants the file any more."""
        self._write = len

    @property
    def checksum(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def checksum_of(data: bytes) -> str:
    """As a file's row has it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
