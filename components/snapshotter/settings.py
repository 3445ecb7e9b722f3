"""What subscriptions.yaml accepts under `settings` of this component."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from components.snapshotter.policy import PolicyProblem, SnapshotPolicy, read_policy

Seconds = Annotated[float, Field(gt=0)]


class SnapshotterSettings(BaseModel):
    """By default no snapshot is taken automatically, and every requested one is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    defaults: dict[str, str | int] = Field(
        {}, description="Properties `snapshot.*` for tables that do not set their own, such as snapshot.every: 1d."
    )
    request_timeout_s: Seconds = Field(300.0, description="How long a request waits for Iceberg to catch up.")
    check_every_s: Seconds = Field(10.0, description="Interval of checks for tables whose `snapshot.every` is over.")
    maintenance_every_s: Seconds = Field(300.0, description="Interval of snapshot expiration and file cleanup.")
    retry_after_s: Seconds = Field(300.0, description="Wait after a failed snapshot before the next automatic one.")
    max_concurrent_requests: int = Field(
        4, gt=0, description="Snapshots that are requested, and requests that are checked, at the same time."
    )
    updater: str = Field("iceberg_updater", description="Name of the component that commits to Iceberg.")

    @field_validator("defaults")
    @classmethod
    def _readable(cls, given: dict[str, str | int]) -> dict[str, str | int]:
        try:
            read_policy(given)
        except PolicyProblem as problem:
            raise ValueError(str(problem)) from problem
        return given

    @property
    def policy(self) -> SnapshotPolicy:
        return read_policy(self.defaults)
