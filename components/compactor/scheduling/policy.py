"""The compaction policy in a table's properties.

compaction.enabled         true     false: the table is not compacted
compaction.target-size     128MiB   size of a file
compaction.small-ratio     0.75     files below this share of the target are small
compaction.min-inputs      5        fewest small files that are merged
compaction.max-group-size  512MiB   most bytes that one task merges; never below the target
compaction.min-age         0s       younger files are not merged
compaction.quiet-hours     (none)   22:00-06:00 Europe/Berlin; UTC without a zone: no job begins then
compaction.strategy        auto     auto, copy, binpack, sort or zorder
compaction.copy-above      256KiB   row groups of at least this mean size are copied without decoding
compaction.delete-ratio    0.3      a partition is rewritten if other engines have deleted this share of its rows
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import msgspec

from components.compactor.merge import Strategy
from components.compactor.scheduling.quiet_hours import QuietHours, read_quiet_hours
from components.lib.lake.table_properties import (
    PolicyProblem,
    Reader,
    count,
    duration_ms,
    flag,
    read_properties,
    size_bytes,
)
from registry.json_text import JsonValue

__all__ = ["CompactionPolicy", "PolicyProblem", "read_policy"]

PREFIX = "compaction."
MIB = 1 << 20


class CompactionPolicy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    enabled: bool = True
    target_bytes: int = 128 * MIB
    small_ratio: float = 0.75
    min_inputs: int = 5
    max_group_bytes: int = 512 * MIB
    min_age_ms: int = 0
    quiet_hours: QuietHours | None = None
    strategy: Strategy = "auto"
    copy_above_bytes: int = MIB // 4
    delete_ratio: float = 0.3  # as Iceberg's own rewrite_data_files

    @property
    def small_bytes(self) -> int:
        """Files below this are small."""
        return int(self.target_bytes * self.small_ratio)

    @property
    def largest_share(self) -> float:
        """The largest file's most size, relative to the sum of the others that it is merged with.

        So a byte is merged again only when its file grows threefold, and a large file is not rewritten for a few small
        ones. `min_inputs` files of equal size always pass.
        """
        return max(0.5, 1 / (self.min_inputs - 1))

    def shown(self) -> dict[str, JsonValue]:
        """Returns the policy for explanations."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        return {**shown, "quiet_hours": None if self.quiet_hours is None else str(self.quiet_hours)}


def read_policy(properties: JsonValue, defaults: CompactionPolicy | None = None) -> CompactionPolicy:
    """Reads a table's properties. Raises `PolicyProblem` for a `compaction.*` property that is unknown or can't be
    read.
    """
    found = read_properties(properties, PREFIX, _PROPERTIES)
    policy: CompactionPolicy = msgspec.structs.replace(defaults or CompactionPolicy(), **found)
    if policy.max_group_bytes < policy.target_bytes:
        if "max_group_bytes" in found:
            raise PolicyProblem(
                f"{PREFIX}max-group-size = {policy.max_group_bytes} bytes: is below the target of {policy.target_bytes}"
            )
        return msgspec.structs.replace(policy, max_group_bytes=policy.target_bytes)
    return policy


def _inputs(name: str, text: str) -> int:
    found = count(name, text)
    if found < 2:
        raise PolicyProblem(f"{name} = {text!r}: a merge needs at least two files; write 2 or more")
    return found


def _ratio(name: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise PolicyProblem(f"{name} = {text!r}: write a share such as 0.75")
    return found


def _strategy(name: str, text: str) -> str:
    if text not in get_args(Strategy):
        raise PolicyProblem(f"{name} = {text!r}: write one of {', '.join(get_args(Strategy))}")
    return text


_PROPERTIES: Mapping[str, tuple[str, Reader]] = {
    "enabled": ("enabled", flag),
    "target-size": ("target_bytes", size_bytes),
    "small-ratio": ("small_ratio", _ratio),
    "min-inputs": ("min_inputs", _inputs),
    "max-group-size": ("max_group_bytes", size_bytes),
    "min-age": ("min_age_ms", duration_ms),
    "quiet-hours": ("quiet_hours", read_quiet_hours),
    "strategy": ("strategy", _strategy),
    "copy-above": ("copy_above_bytes", size_bytes),
    "delete-ratio": ("delete_ratio", _ratio),
}
