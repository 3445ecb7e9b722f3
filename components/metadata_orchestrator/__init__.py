"""The metadata orchestrator: tables begin, end and evolve as the registry says, and nothing half is left lying about.

In: changes of `tables` and `table_metadata`. Out: dropped tables, cleaned uploads, problems named table by table.
Guaranteed: one table's problem is that table's alone; whatever is left undone is done at the next upkeep or start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astha.subscribers import ComponentContext
from components.lib.lake.storage.objects import Objects
from components.metadata_orchestrator.maintenance import Upkeep
from components.metadata_orchestrator.settings import OrchestratorSettings
from components.metadata_orchestrator.subscriber import MetadataOrchestrator
from components.metadata_orchestrator.validation import Inspection

__all__ = ["MetadataOrchestrator", "OrchestratorSettings", "create"]


def create(settings: Mapping[str, Any], context: ComponentContext) -> MetadataOrchestrator:
    chosen = OrchestratorSettings.model_validate(settings)
    lake = context.lake
    inspection = Inspection(Objects(lake, timeout_s=chosen.probe_timeout_s, retry_s=chosen.probe_timeout_s), lake)
    upkeep = Upkeep(
        context.store,
        Objects(lake),
        context.clock,
        chosen,
        lake.intents_stale_after_s,
        context.clock_guard,
    )
    return MetadataOrchestrator(context.store, context.clock, inspection, upkeep)
