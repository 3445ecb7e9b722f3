"""The snapshot policy in a table's properties.

snapshot.every        1d       one per day, if the table has changed      (default: no automatic snapshots)
snapshot.after-rows   1000000  after that many inserted rows, bytes or files since the last one
snapshot.after-bytes  10GiB
snapshot.after-files  1000
snapshot.keep         30       keep that many of the newest               (default: keep all)
snapshot.keep-for     90d      keep those that are younger
snapshot.hold         q?-*,x   keep these tags whatever `keep` says
snapshot.grace        1d       time between the removal of a file or snapshot and its deletion
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from components.lib.lake.table_properties import (
    DAY_MS,
    PolicyProblem,
    Reader,
    count,
    duration_ms,
    patterns,
    positive_duration_ms,
    read_properties,
    size_bytes,
)
from registry.json_text import JsonValue

__all__ = ["DAY_MS", "SnapshotPolicy", "PolicyProblem", "read_policy"]

PREFIX = "snapshot."


class SnapshotPolicy(msgspec.Struct, frozen=True, kw_only=True):
    every_ms: int | None = None
    after_rows: int | None = None
    after_bytes: int | None = None
    after_files: int | None = None
    keep: int | None = None
    keep_for_ms: int | None = None
    hold: tuple[str, ...] = ()
    grace_ms: int = DAY_MS

    @property
    def automatic(self) -> bool:
        return self.every_ms is not None or self.by_size

    @property
    def by_size(self) -> bool:
        return any(limit is not None for limit in (self.after_rows, self.after_bytes, self.after_files))

    @property
    def expires(self) -> bool:
        return self.keep is not None or self.keep_for_ms is not None

    def holds(self, tag: str | None) -> bool:
        return tag is not None and any(fnmatchcase(tag, pattern) for pattern in self.hold)


def read_policy(properties: JsonValue, defaults: SnapshotPolicy | None = None) -> SnapshotPolicy:
    """Raises `PolicyProblem` for the first `snapshot.*` property that is unknown or has an invalid value."""
    return msgspec.structs.replace(defaults or SnapshotPolicy(), **read_properties(properties, PREFIX, _PROPERTIES))


_PROPERTIES: Mapping[str, tuple[str, Reader]] = {
    "every": ("every_ms", positive_duration_ms),
    "after-rows": ("after_rows", count),
    "after-bytes": ("after_bytes", size_bytes),
    "after-files": ("after_files", count),
    "keep": ("keep", count),
    "keep-for": ("keep_for_ms", duration_ms),
    "hold": ("hold", patterns),
    "grace": ("grace_ms", duration_ms),
}
