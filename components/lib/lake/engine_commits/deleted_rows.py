"""The data files whose rows a commit may delete by new delete files.

The registry has to have them all: one that a compaction has replaced there, and not yet in Iceberg, would be replaced
in Iceberg after the commit, by a file that has the deleted rows and is newer than the delete file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata, StoredSnapshot
from components.lib.lake.engine_commits.schema_history import ParsedSchemas
from components.lib.lake.iceberg.manifests import may_contain
from components.lib.lake.iceberg.schema_updates import partition_kinds, schema_of
from components.lib.lake.partitioning.partition_values import Partitioning
from components.lib.lake.schema.table_schema import TableSchema
from registry.inputs import DeleteFileDraft

_PATH_ID = 2147483546  # Iceberg's reserved id of the column file_path
_WHOLE_TABLE = ""


def only_data_file(file: DataFile) -> str | None:
    """Returns the data file that a position delete file names, if its bounds say that it is the only one."""
    if file.content != DataFileContent.POSITION_DELETES:
        return None
    lower, upper = (file.lower_bounds or {}).get(_PATH_ID), (file.upper_bounds or {}).get(_PATH_ID)
    return lower.decode() if lower is not None and lower == upper else None


class AffectedFiles:
    """What the delete files apply to that do not name one data file: partitions, or the whole table."""

    def __init__(self, metadata: IcebergMetadata, deletes: Iterable[DeleteFileDraft]) -> None:
        self._partitions: defaultdict[int, set[str]] = defaultdict(set)
        self.whole_table = False
        for file in deletes:
            if file.referenced_data_file is None:
                self._partitions[file.spec_id].add(file.partition_path)
                self.whole_table |= file.content == "equality" and file.partition_path == _WHOLE_TABLE
        self._paths = frozenset[str]().union(*self._partitions.values())
        self._schemas = ParsedSchemas(metadata)

    def __bool__(self) -> bool:
        return bool(self._paths)

    def includes(self, partition_path: str) -> bool:
        return self.whole_table or partition_path in self._paths

    def manifests(self, manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
        """Returns those of data files that may have affected ones, by the bounds in the manifest list."""
        return [
            manifest
            for manifest in manifests
            if manifest.content == ManifestContent.DATA and (self.whole_table or self._may_contain(manifest))
        ]

    def _may_contain(self, manifest: ManifestFile) -> bool:
        spec_id = manifest.partition_spec_id
        if spec_id not in self._partitions:
            return False
        spec = self._schemas.specs()[spec_id]
        schema = schema_of(self._schemas, spec)
        partitioning = Partitioning(TableSchema(0, schema, spec, UNSORTED_SORT_ORDER))
        records = {partitioning.values(path) for path in self._partitions[spec_id]}
        return may_contain(manifest, records, partition_kinds(schema, spec))


def is_never_compacted(metadata: IcebergMetadata, old: StoredSnapshot, deletes: Sequence[DeleteFileDraft]) -> bool:
    """Whether the table has equality deletes for all of its files already: then no compaction can be under way.

    Engines that write by equality deletes do so with every commit, and need not read the whole table each time.
    """
    if len(metadata.partition_specs) != 1 or metadata.partition_specs[0]["fields"]:
        return False
    had = old.summary().get("total-equality-deletes", "0") != "0"
    return had and all(file.content == "equality" for file in deletes)
