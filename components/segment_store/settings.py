"""What subscriptions.yaml may say under `settings` of this component."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from components.lib.streams.reader.block_cache import CachePolicy
from components.segment_store.maintenance.merge_policy import MergePolicy

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]

_MERGE = MergePolicy()
_CACHE = CachePolicy()


class SegmentStoreSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    location: str | None = Field(None, description="Where merged objects go; none: `streams` in the lake's warehouse.")
    memory_bytes: Count = Field(_CACHE.memory_bytes, description="Decoded blocks kept in memory.")
    disk_bytes: int = Field(0, ge=0, description="Blocks kept on local disk; 0 for none.")
    disk_directory: Path | None = Field(None, description="Where; required if disk_bytes is not 0.")
    retention_every_s: Seconds = Field(30.0, description="Between two looks for what need not be kept any longer.")
    retention_step: Count = Field(500, description="Segments deleted in one transaction.")
    merge: bool = Field(True, description="Whether small segments are merged.")
    merge_every_s: Seconds = Field(5.0, description="Between two looks for segments to merge.")
    merge_partitions: Count = Field(250, description="Partitions merged into one object at most.")
    merge_small_bytes: Count = Field(_MERGE.small_bytes, description="A segment of that size is not merged any more.")
    merge_target_bytes: Count = Field(_MERGE.target_bytes, description="Size of a merged segment, and of an object.")
    merge_fewest: int = Field(_MERGE.fewest, ge=2, description="Neighbouring small segments that are worth a merge.")
    merge_after_s: float = Field(
        _MERGE.settled_ms / 1000, ge=0, description="Segments younger than that are left to writers and readers."
    )
    clean_every_s: Seconds = Field(300.0, description="Between two looks for idle producers and silent agents.")
    producers_idle_s: Seconds = Field(
        7 * 86400.0, description="A producer that wrote nothing to a partition for so long is forgotten there."
    )
    agents_silent_s: Seconds = Field(
        86400.0, description="An agent or consumer without a heartbeat for so long is forgotten; it may come back."
    )

    @model_validator(mode="after")
    def _has_a_directory(self) -> Self:
        if self.disk_bytes and self.disk_directory is None:
            raise ValueError("disk_bytes without disk_directory: say where blocks go, or set disk_bytes to 0")
        return self

    @property
    def merge_policy(self) -> MergePolicy:
        return MergePolicy(
            self.merge_small_bytes, self.merge_target_bytes, self.merge_fewest, int(self.merge_after_s * 1000)
        )
