"""What subscriptions.yaml may say under `settings` of this component."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class UpdaterSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    max_snapshots: int = Field(
        100, ge=2, description="Snapshots of a table to keep, beside the tagged ones; older ones expire with a commit."
    )
