"""What differs at one look, and what of it still differs at a later one. Pure: this decides what is a difference.

The registry and Iceberg can't be read at the same moment, and the updater is always a little behind. So each look reads
Iceberg first and the registry, in one consistent snapshot, after it; and what differs is only a candidate. It stays one
while it differs in *every* later look, and is certain once one of those looks began after the updater had passed the
first:

- a file that is registered throughout (its row has the same id), and that Iceberg lacks after the updater has come past
  its registration, was lost;
- a file that Iceberg has throughout (the same snapshot has added it), though the registry lacks it and the updater has
  come past its removal, is one too many.

Whatever writers do meanwhile makes new differences, never old ones last: candidates only become fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from components.commands.verify.report import Kind
from components.lib.lake.file_set_digest import LiveFile


class Observation(msgspec.Struct):
    """`missing` are registered and not in Iceberg, with the ids of their rows; `extra` are in Iceberg and not
    registered, with the snapshots that have added them.
    """

    missing: dict[LiveFile, int] = {}
    extra: dict[LiveFile, int | None] = {}
    remarks: set[tuple[Kind, str]] = set()
    """Of the table as a whole, both sides' values in them, so that a change of either makes another remark."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.remarks)

    @property
    def files(self) -> int:
        return len(self.missing) + len(self.extra)

    def persisting(self, later: Observation) -> Observation:
        """What of this one is the same in a later one."""
        return Observation(
            dict(self.missing.items() & later.missing.items()),
            dict(self.extra.items() & later.extra.items()),
            self.remarks & later.remarks,
        )


class Comparison:
    """Files of both sides, fed one by one; holds those of Iceberg that were not met yet."""

    def __init__(self, live: Iterable[tuple[LiveFile, int | None]]) -> None:
        self._live: dict[LiveFile, int | None] = {}
        self._twice: set[tuple[Kind, str]] = set()
        for file, since in live:
            if file in self._live:
                self._twice.add((Kind.TWICE, file.path))
            self._live[file] = since
        self._missing: dict[LiveFile, int] = {}

    def registered(self, file: LiveFile, row_id: int) -> None:
        if file in self._live:
            del self._live[file]
        else:
            self._missing[file] = row_id

    def observation(self, remarks: Iterable[tuple[Kind, str]] = ()) -> Observation:
        return Observation(self._missing, self._live, self._twice.union(remarks))


class Sorted(msgspec.Struct):
    """Differing files by what differs: present on one side only, or described differently."""

    missing: list[LiveFile]
    extra: list[LiveFile]
    described: list[tuple[LiveFile, LiveFile]]  # the registry's, Iceberg's


def sort(missing: Mapping[LiveFile, int], extra: Iterable[LiveFile]) -> Sorted:
    by_path = {file.path: file for file in extra}
    described = [(file, by_path[file.path]) for file in sorted(missing) if file.path in by_path]
    paths = {file.path for file, _ in described}
    return Sorted(
        [file for file in sorted(missing) if file.path not in paths],
        [file for file in sorted(by_path.values()) if file.path not in paths],
        described,
    )
