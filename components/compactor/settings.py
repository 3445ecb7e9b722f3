"""What subscriptions.yaml may say under `settings` of this component."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from components.compactor.execution.job_settings import JobLimits
from components.compactor.scheduling.policy import Policy, PolicyProblem, read_policy
from components.lib.lake.table_properties import size_bytes
from components.lib.spark.settings import SparkSettings

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class CompactorSettings(BaseModel):
    """The defaults compact whatever has five small files, two partitions at a time, on this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    defaults: dict[str, str | int | float | bool] = Field(
        {},
        description="Properties `compaction.*` of tables that don't have their own, such as compaction.min-inputs: 10.",
    )
    jobs: Count = Field(2, description="Partitions that are compacted at the same time.")
    groups: Count = Field(2, description="Groups of one partition that are merged at the same time.")
    bytes_per_hour: Count | None = Field(None, description="Bytes of input that may be merged in an hour.")
    task_memory: str = Field("1GiB", description="What the merge of one group may hold in memory.")
    merge_timeout_s: Seconds = Field(
        600.0,
        description="How long a worker may take to merge one group, beside a second for each MiB of it. A merge that"
        " takes longer is ended, and its files are looked at one by one.",
    )
    heartbeat_s: Seconds = Field(1.0, description="Between two signs of life of a running compaction.")
    stale_after_s: Seconds = Field(30.0, description="Without a sign of life, before another compactor takes over.")
    check_every_s: Seconds = Field(10.0, description="Looks for partitions whose time has come, or whose owner died.")
    keep_for_days: Seconds = Field(30.0, description="How long finished decisions are kept.")
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
            heartbeat_s=self.heartbeat_s, stale_after_s=self.stale_after_s, groups_at_once=self.groups,
            merge_timeout_s=self.merge_timeout_s,
        )  # fmt: skip

    @property
    def policy(self) -> Policy:
        return read_policy(self.defaults)
