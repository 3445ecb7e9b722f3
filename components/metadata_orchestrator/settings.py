"""What subscriptions.yaml accepts under `settings` of this component."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0)]


class OrchestratorSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    maintenance_every_s: Seconds = Field(300.0, description="Interval of maintenance: cleanup, unfinished drops.")
    probe_timeout_s: Seconds = Field(5.0, description="Time limit of a check of a table's location.")
