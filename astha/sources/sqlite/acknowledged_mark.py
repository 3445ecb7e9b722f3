"""The acknowledged position in a file beside the registry, to notice that the registry was restored in place.

A file that is overwritten with an older copy keeps its inode, and the copy's ledger fits the copy's change log: nothing
in it shows that it is older. This file is not part of the copy. Without it, or if it can't be written, such a restore
is not noticed; nothing else depends on it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import structlog

from registry.position import Position
from registry.private_files import opener

log = structlog.get_logger(__name__)

_SUFFIX = "-acknowledged"


class AcknowledgedMark:
    """Blocking. One process at a time writes it: the leader."""

    def __init__(self, registry: Path) -> None:
        self._path = registry.with_name(registry.name + _SUFFIX)
        self._written: Position | None = None

    def read(self) -> Position:
        """Returns 0 if nothing is known."""
        with contextlib.suppress(OSError, ValueError):
            return Position(int(self._path.read_text()))
        return Position(0)

    def write(self, position: Position) -> None:
        if position == self._written:
            return
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            with open(new, "w", opener=opener()) as file:
                file.write(f"{position}\n")
            new.replace(self._path)
        except OSError as error:
            log.info("acknowledged position can't be kept beside the registry", file=str(self._path), error=str(error))
        self._written = position
