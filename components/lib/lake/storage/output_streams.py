"""Output streams: what a file is written to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol


class Writable(Protocol):
    def write(self, data: bytes, /) -> int: ...


class Sink:
    """The smallest file object that Arrow and the standard library accept for sequential writes."""

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
        """The creator of the sink flushes and closes its target."""

    def close(self) -> None:
        """See `flush`."""


class ChecksummedSink(Sink):
    """Counts and hashes the bytes that pass, so that the file is not read again for its size and checksum."""

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

    def discard_the_rest(self) -> None:
        """Stops forwarding: the file is given up."""
        self._write = len

    @property
    def checksum(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def checksum_of(data: bytes) -> str:
    """Returns the checksum in the form that the registry stores."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
