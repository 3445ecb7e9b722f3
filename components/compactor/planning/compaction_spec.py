"""What a job is to do: groups of files of one partition, as they were read, and how to merge them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from astha.subscribers import LakeSettings
from components.compactor.merge import Strategy
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.scheduling.scoring import FileSet
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.table_lookup import full_name
from registry.json_text import EMPTY_OBJECT, JsonText
from registry.models import CompactionTrigger, LakeTable, TableFile, TableMetadata


class CompactionSpec(msgspec.Struct, frozen=True, kw_only=True):
    table: LakeTable
    partition_path: str
    groups: tuple[tuple[TableFile, ...], ...]
    versions: tuple[TableMetadata, ...]  # all of the table, the current one first
    lake: LakeSettings
    policy: CompactionPolicy = CompactionPolicy()
    strategy: Strategy = "auto"
    strategy_reason: str = "the strategy was requested"
    memory_bytes: int = 1 << 30
    min_files: int = 2  # per group; fewer are not worth a merge when others were removed
    trigger: CompactionTrigger = "manual"
    rule: str = "requested"
    explanation: JsonText = EMPTY_OBJECT
    position: int | None = None
    has_deletes: bool = False  # delete files apply to the partition

    @property
    def name(self) -> str:
        return full_name(self.table)

    @property
    def files(self) -> list[TableFile]:
        return [file for group in self.groups for file in group]

    @property
    def input_bytes(self) -> int:
        return sum(file.file_size for file in self.files)

    def outputs_of(self, files: Sequence[TableFile]) -> tuple[int, int]:
        """Returns how many files to write for a group, and the size of each."""
        size = sum(file.file_size for file in files)
        count = FileSet(len(files), size).outputs(self.policy)
        return count, max(self.policy.target_bytes, -(-size // count))

    def versions_of(self, files: Iterable[TableFile]) -> tuple[TableMetadata, ...]:
        """Returns the current version, then the older ones that the files have."""
        named = {file.schema_version for file in files}
        current = self.versions[0]
        return (current, *(version for version in self.versions[1:] if version.schema_version in named))

    def retired_ids(self, named: Iterable[TableMetadata]) -> tuple[int, ...]:
        """Returns field ids of versions that are not named: a file that another engine wrote may still have them."""
        numbers = {version.schema_version for version in named}
        others = [version for version in self.versions if version.schema_version not in numbers]
        found: set[int] = set()
        return tuple(sorted(found.union(*(TableSchema.read(version).iceberg.field_ids for version in others))))


def halves(files: Sequence[TableFile]) -> tuple[Sequence[TableFile], Sequence[TableFile]] | None:
    """Returns two groups of about the same size, of at least two files each, or None for fewer than three files."""
    if len(files) < 3:
        return None
    total = sum(file.file_size for file in files)
    seen = 0
    for place, file in enumerate(files):
        seen += file.file_size
        if seen * 2 >= total:
            cut = min(max(place + 1, 2), max(len(files) - 2, 2))
            return files[:cut], files[cut:]
    return files[:2], files[2:]
