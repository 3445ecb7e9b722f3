"""The delete files that apply to a partition, as they are now: what a plan and a merge must know of them."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from components.compactor.merge import DeleteInput
from components.compactor.scheduling.delete_counts import WHOLE_TABLE, first_reason
from registry.contract import MetadataStore
from registry.models import TableDeleteFile


class PartitionDeletes(msgspec.Struct, frozen=True):
    files: tuple[TableDeleteFile, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.files)

    @property
    def reason(self) -> str | None:
        """Why they can't be applied, or None."""
        return first_reason(self.files)

    @property
    def rows(self) -> int:
        return sum(file.row_count for file in self.files)

    @property
    def newest_ms(self) -> int:
        return max((file.created_at for file in self.files), default=0)

    @property
    def named(self) -> frozenset[str] | None:
        """The data files that they name; None if they may name any."""
        paths = [file.referenced_data_file for file in self.files]
        return None if None in paths else frozenset(path for path in paths if path is not None)

    def inputs(self, paths: Collection[str]) -> tuple[DeleteInput, ...]:
        """Returns those that a merge of these files has to read."""
        return tuple(
            DeleteInput(file.file_path, file.file_size, file.row_count)
            for file in self.files
            if file.referenced_data_file is None or file.referenced_data_file in paths
        )


NO_DELETES = PartitionDeletes()


async def read_partition_deletes(store: MetadataStore, table_id: int, partition_path: str) -> PartitionDeletes:
    """Includes those that apply to the whole table."""
    found: list[TableDeleteFile] = []
    for path in dict.fromkeys((partition_path, WHOLE_TABLE)):
        after = 0
        while page := await store.list_delete_files(table_id, partition_path=path, after=after):
            found += page
            after = page[-1].id
    return PartitionDeletes(tuple(found))
