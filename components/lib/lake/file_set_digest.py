"""A digest of a set of files, by which the registry's and Iceberg's sets are compared without loading either.

It is the sum modulo 2^256 of SHA-256 over each file's path, rows, bytes and partition path. Order does not matter, and
a commit updates it by what it adds and removes, whatever the size of the table.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from registry.models import TableFile

_MODULUS = 1 << 256


class LiveFile(msgspec.Struct, frozen=True, gc=False, order=True):
    """The properties of a file that must be equal in the registry and in Iceberg."""

    path: str
    rows: int
    size_bytes: int
    partition_path: str = ""

    @classmethod
    def of(cls, file: TableFile) -> LiveFile:
        return cls(file.file_path, file.row_count, file.file_size, file.partition_path)

    @property
    def number(self) -> int:
        """Returns the file's summand. No part contains the separator: no database stores NUL in text."""
        text = f"{self.path}\0{self.rows}\0{self.size_bytes}\0{self.partition_path}"
        return int.from_bytes(sha256(text.encode()).digest(), "big")


class Digest(msgspec.Struct, gc=False):
    """The digest of the files that were added and not removed; equal sets have equal digests."""

    value: int = 0
    files: int = 0

    @classmethod
    def parse(cls, text: str, files: int) -> Digest:
        """Parses `str(digest)`. Raises ValueError if the text is none."""
        value = int(text, 16)
        if len(text) != 64 or files < 0:
            raise ValueError(f"{text!r} of {files} files is not a digest")
        return cls(value, files)

    def add(self, file: LiveFile) -> None:
        self.add_number(file.number)

    def add_number(self, number: int) -> None:
        """Adds a file by its `LiveFile.number`."""
        self.value = (self.value + number) % _MODULUS
        self.files += 1

    def remove(self, file: LiveFile) -> None:
        self.value = (self.value - file.number) % _MODULUS
        self.files -= 1

    def moved(self, start: Digest, end: Digest) -> Digest:
        """Returns this digest after the changes that led from `start` to `end`."""
        return Digest((self.value + end.value - start.value) % _MODULUS, self.files + end.files - start.files)

    def copy(self) -> Digest:
        return Digest(self.value, self.files)

    def __str__(self) -> str:
        return f"{self.value:064x}"
