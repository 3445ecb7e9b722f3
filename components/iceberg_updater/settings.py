"""What subscriptions.yaml accepts under `settings` of this component."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class UpdaterSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    max_snapshots: int = Field(
        100, ge=2, description="Snapshots to keep per table, besides tagged ones. Commits expire older ones."
    )
    table_timeout_s: float = Field(
        120.0, gt=0, description="A commit that takes longer is abandoned, and its table is retried later."
    )
    probe_timeout_s: float = Field(
        30.0, gt=0, description="Time limit for a small request to a table's storage, before it is retried later."
    )
    retry_initial_s: float = Field(
        1.0, gt=0, description="Wait before the first retry of a table that could not be updated; doubles each time."
    )
    retry_max_s: float = Field(300.0, gt=0, description="Longest wait between two retries of a table.")
