"""What subscriptions.yaml may say under `settings` of this component."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from components.snapshotter.policy import Policy, PolicyProblem, read_policy

Seconds = Annotated[float, Field(gt=0)]


class SnapshotterSettings(BaseModel):
    """The defaults take no snapshot by themselves and keep every one that is asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    defaults: dict[str, str | int] = Field(
        {}, description="Properties `snapshot.*` of tables that don't have their own, such as snapshot.every: 1d."
    )
    wait_s: Seconds = Field(300.0, description="How long a request waits for Iceberg to contain what it asks for.")
    check_every_s: Seconds = Field(10.0, description="Between two looks for tables whose time has come.")
    upkeep_every_s: Seconds = Field(300.0, description="Between two rounds of expiry and cleaning.")
    retry_after_s: Seconds = Field(300.0, description="After a failed snapshot, before one is taken by itself again.")
    at_once: int = Field(
        4, gt=0, description="Tables whose requests are made, and requests that are looked at, at the same time."
    )
    updater: str = Field("iceberg_updater", description="The name of the component that commits to Iceberg.")

    @field_validator("defaults")
    @classmethod
    def _readable(cls, given: dict[str, str | int]) -> dict[str, str | int]:
        try:
            read_policy(given)
        except PolicyProblem as problem:
            raise ValueError(str(problem)) from problem
        return given

    @property
    def policy(self) -> Policy:
        return read_policy(self.defaults)
