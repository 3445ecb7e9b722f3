"""The metadata orchestrator: validates tables, completes drops and cleans up abandoned uploads.

In: events of `tables` and `table_metadata`. Out: dropped tables, deleted files of abandoned uploads, problems by table.
Guaranteed: a problem of one table does not affect the others; unfinished work is completed by the next round of
maintenance or at the next start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astha.subscribers import ComponentContext
from components.lib.lake.storage.objects import Objects
from components.metadata_orchestrator.maintenance import Maintenance
from components.metadata_orchestrator.settings import OrchestratorSettings
from components.metadata_orchestrator.subscriber import MetadataOrchestrator
from components.metadata_orchestrator.validation import TableValidator

__all__ = ["MetadataOrchestrator", "OrchestratorSettings", "create"]


def create(settings: Mapping[str, Any], context: ComponentContext) -> MetadataOrchestrator:
    chosen = OrchestratorSettings.model_validate(settings)
    lake = context.lake
    validator = TableValidator(Objects(lake, timeout_s=chosen.probe_timeout_s, retry_s=chosen.probe_timeout_s), lake)
    maintenance = Maintenance(
        context.store,
        Objects(lake),
        context.clock,
        chosen,
        lake.intents_stale_after_s,
        context.clock_guard,
    )
    return MetadataOrchestrator(context.store, context.clock, validator, maintenance)
