"""Differences of one comparison, and those that persist in a later one. Pure: decides what counts as a difference.

The registry and Iceberg cannot be read at the same moment, and the updater is always slightly behind. So each
comparison reads Iceberg first and then the registry, in one consistent snapshot, and a difference is only a candidate.
It stays one while it is in *every* later comparison, and is certain once a comparison that began after the updater had
passed the first one still has it:

- a file that is registered throughout (same row id) and missing in Iceberg after the updater has passed its
  registration was lost;
- a file that is in Iceberg throughout (added by the same snapshot) and missing in the registry after the updater has
  passed its removal is a leftover.

Concurrent writes create new differences but never prolong old ones: the number of candidates only decreases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from components.commands.verify.report import DifferenceKind
from components.lib.lake.file_set_digest import LiveFile

Finding: TypeAlias = tuple[DifferenceKind, str]


class TableDiff(msgspec.Struct):
    """`missing` files are registered but not in Iceberg, with their row ids; `extra` files are in Iceberg but not
    registered, with the snapshots that added them.
    """

    missing: dict[LiveFile, int] = {}
    extra: dict[LiveFile, int | None] = {}
    findings: set[Finding] = set()
    """About the table as a whole. The text has both sides' values, so that a change of either is a new finding."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.findings)

    @property
    def files(self) -> int:
        return len(self.missing) + len(self.extra)

    def persisting(self, later: TableDiff) -> TableDiff:
        """Returns the part that is unchanged in a later comparison."""
        return TableDiff(
            dict(self.missing.items() & later.missing.items()),
            dict(self.extra.items() & later.extra.items()),
            self.findings & later.findings,
        )


class FileComparison:
    """Compares Iceberg's files with registered ones, which are added one by one."""

    def __init__(self, live: Iterable[tuple[LiveFile, int | None]]) -> None:
        self._live: dict[LiveFile, int | None] = {}
        self._duplicates: set[Finding] = set()
        for file, since in live:
            if file in self._live:
                self._duplicates.add((DifferenceKind.TWICE, file.path))
            self._live[file] = since
        self._missing: dict[LiveFile, int] = {}

    def add_registered(self, file: LiveFile, row_id: int) -> None:
        if file in self._live:
            del self._live[file]
        else:
            self._missing[file] = row_id

    def result(self, findings: Iterable[Finding] = ()) -> TableDiff:
        return TableDiff(self._missing, self._live, self._duplicates.union(findings))


class ClassifiedFiles(msgspec.Struct):
    """Differing files: present on one side only, or on both with different properties."""

    missing: list[LiveFile]
    extra: list[LiveFile]
    described: list[tuple[LiveFile, LiveFile]]  # the registry's, Iceberg's


def classify(missing: Mapping[LiveFile, int], extra: Iterable[LiveFile]) -> ClassifiedFiles:
    by_path = {file.path: file for file in extra}
    described = [(file, by_path[file.path]) for file in sorted(missing) if file.path in by_path]
    paths = {file.path for file, _ in described}
    return ClassifiedFiles(
        [file for file in sorted(missing) if file.path not in paths],
        [file for file in sorted(by_path.values()) if file.path not in paths],
        described,
    )
