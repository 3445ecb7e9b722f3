"""The Iceberg updater: the registry's tables as Iceberg tables, exactly once and always comparable.

In: `table_metadata` and `table_files`. Out: Iceberg commits, each with the registry's position and a digest in it.
Guaranteed: a registry transaction is in one snapshot or in none; a redelivered one changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astha.subscribers import Surroundings
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.subscriber import IcebergUpdater

__all__ = ["IcebergUpdater", "UpdaterSettings", "create"]


def create(settings: Mapping[str, Any], surroundings: Surroundings) -> IcebergUpdater:
    """ValueError (pydantic's) if the settings are not this component's."""
    return IcebergUpdater(UpdaterSettings.model_validate(dict(settings)), surroundings)
