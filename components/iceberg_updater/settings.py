"""What subscriptions.yaml may say under `settings` of this component."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class UpdaterSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    max_snapshots: int = Field(
        100, ge=2, description="Snapshots of a table to keep, beside the tagged ones; older ones expire with a commit."
    )
    table_timeout_s: float = Field(
        120.0, gt=0, description="A commit that takes longer is left behind, and its table is tried again later."
    )
    probe_timeout_s: float = Field(
        30.0, gt=0, description="A table's storage that has not answered a small request by then is tried again later."
    )
    retry_first_s: float = Field(
        1.0, gt=0, description="Wait before a table that could not be brought up to date is tried again; doubles."
    )
    retry_max_s: float = Field(300.0, gt=0, description="Longest wait between two attempts at such a table.")
