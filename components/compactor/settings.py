"""Settings of the compactor in subscriptions.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from components.compactor.execution.job_context import JobLimits
from components.compactor.scheduling.policy import CompactionPolicy, PolicyProblem, read_policy
from components.lib.lake.table_properties import size_bytes
from components.lib.spark.settings import SparkSettings

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class CompactorSettings(BaseModel):
    """The defaults compact partitions with five small files, two at a time, on this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    defaults: dict[str, str | int | float | bool] = Field(
        {},
        description="Default `compaction.*` properties of tables without their own, e.g. compaction.min-inputs: 10.",
    )
    jobs: Count = Field(2, description="Most partitions that are compacted at a time.")
    groups: Count = Field(2, description="Most groups of one partition that are merged at a time.")
    bytes_per_hour: Count | None = Field(
        None, description="Most input bytes that are merged per hour. Default: no limit."
    )
    task_memory: str = Field("1GiB", description="Most memory for the merge of one group.")
    merge_timeout_s: Seconds = Field(
        600.0,
        description="Most seconds for a worker to merge one group, plus one second per MiB. A longer merge is ended,"
        " and its files are inspected one by one.",
    )
    heartbeat_s: Seconds = Field(1.0, description="Seconds between two heartbeats of a running compaction.")
    stale_after_s: Seconds = Field(30.0, description="Seconds without heartbeat before another compactor takes over.")
    check_every_s: Seconds = Field(
        10.0, description="Most seconds between two checks for partitions that may begin, and for stale claims."
    )
    keep_for_days: Seconds = Field(30.0, description="Days for which finished decisions are kept.")
    spark: SparkSettings = SparkSettings()

    @field_validator("defaults")
    @classmethod
    def _readable(cls, given: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        try:
            read_policy(given)
        except PolicyProblem as problem:
            raise ValueError(str(problem)) from problem
        return given

    @field_validator("task_memory")
    @classmethod
    def _size(cls, given: str) -> str:
        try:
            size_bytes("task_memory", given)
        except PolicyProblem as problem:
            raise ValueError(str(problem)) from problem
        return given

    @property
    def memory_bytes(self) -> int:
        return size_bytes("task_memory", self.task_memory)

    @property
    def limits(self) -> JobLimits:
        return JobLimits(
            heartbeat_s=self.heartbeat_s, stale_after_s=self.stale_after_s, parallel_groups=self.groups,
            merge_timeout_s=self.merge_timeout_s,
        )  # fmt: skip

    @property
    def policy(self) -> CompactionPolicy:
        return read_policy(self.defaults)
