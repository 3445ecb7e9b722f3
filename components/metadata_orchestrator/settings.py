from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0)]


class OrchestratorSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    upkeep_every_s: Seconds = Field(300.0, description="Between two looks for what others have left undone.")
    probe_timeout_s: Seconds = Field(5.0, description="How long to wait for storage when a table's location is tried.")
