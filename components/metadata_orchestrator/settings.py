"""What subscriptions.yaml accepts under `settings` of this component."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from components.lib.lake.moved import SharedThreshold

Seconds = Annotated[float, Field(gt=0)]


class OrchestratorSettings(SharedThreshold):
    maintenance_every_s: Seconds = Field(300.0, description="Interval of maintenance: cleanup, unfinished drops.")
    probe_timeout_s: Seconds = Field(5.0, description="Time limit of a check of a table's location.")
