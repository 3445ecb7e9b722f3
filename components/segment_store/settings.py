"""The settings of this component in subscriptions.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from components.lib.streams.reader.block_cache import BlockCachePolicy
from components.segment_store.maintenance.merge_policy import MergePolicy

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]

_MERGE = MergePolicy()
_CACHE = BlockCachePolicy()


class SegmentStoreSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    location: str | None = Field(None, description="Location of merged objects; null: lake.streams.")
    memory_bytes: Count = Field(_CACHE.memory_bytes, description="Size of the memory cache of decoded blocks.")
    disk_bytes: int = Field(0, ge=0, description="Size of the disk cache of blocks; 0 turns it off.")
    disk_directory: Path | None = Field(
        None, description="Directory of the disk cache; required if disk_bytes is not 0."
    )
    retention_every_s: Seconds = Field(30.0, description="Interval of retention.")
    retention_batch_segments: Count = Field(500, description="Most segments deleted per transaction.")
    merge: bool = Field(True, description="Whether to merge small segments.")
    merge_every_s: Seconds = Field(5.0, description="Interval of merging.")
    merge_partitions: Count = Field(250, description="Most partitions per merged object.")
    merge_small_bytes: Count = Field(_MERGE.small_bytes, description="Segments of this size or larger are not merged.")
    merge_target_bytes: Count = Field(
        _MERGE.target_bytes, description="Target size of a merged segment, and of a merged object."
    )
    merge_min_segments: int = Field(_MERGE.min_segments, ge=2, description="Fewest adjacent small segments to merge.")
    merge_min_age_s: float = Field(
        _MERGE.min_age_ms / 1000, ge=0, description="Segments younger than this are not merged."
    )
    cleanup_every_s: Seconds = Field(300.0, description="Interval of the removal of idle producers and silent agents.")
    lag_every_s: Seconds = Field(30.0, description="Interval of measuring consumer lag and expired leases.")
    forget_producers_after_s: Seconds = Field(
        7 * 86400.0, description="The state of a producer is removed from a partition after so long without appends."
    )
    forget_agents_after_s: Seconds = Field(
        86400.0, description="An agent or consumer is deregistered after so long without a heartbeat; it may come back."
    )

    @model_validator(mode="after")
    def _has_a_directory(self) -> Self:
        if self.disk_bytes and self.disk_directory is None:
            raise ValueError("disk_bytes is set without disk_directory: set disk_directory, or set disk_bytes to 0")
        return self

    @property
    def merge_policy(self) -> MergePolicy:
        return MergePolicy(
            self.merge_small_bytes, self.merge_target_bytes, self.merge_min_segments, int(self.merge_min_age_s * 1000)
        )
