"""The Iceberg updater: maintains an Iceberg table for each Parquet table of the registry.

In: events of `table_metadata` and `table_files`. Out: Iceberg commits, each stamped with the registry's position and a
digest of the live files.
Guaranteed: exactly once. A registry transaction is in one snapshot or in none; a redelivered one changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astha.subscribers import ComponentContext
    from components.iceberg_updater.subscriber import IcebergUpdater

__all__ = ["IcebergUpdater", "create"]

needs_registry_url = True
"""For the catalog, which is in the registry's database unless the settings name another one."""


def create(settings: Mapping[str, Any], context: ComponentContext) -> IcebergUpdater:
    """Raises ValueError (pydantic's) if the settings are invalid."""
    from components.iceberg_updater.settings import UpdaterSettings
    from components.iceberg_updater.subscriber import IcebergUpdater

    return IcebergUpdater(UpdaterSettings.model_validate(dict(settings)), context)


def __getattr__(name: str) -> Any:
    """Loads `IcebergUpdater` on first use: `astha --help` imports the commands and must not load PyIceberg."""
    if name == "IcebergUpdater":
        from components.iceberg_updater.subscriber import IcebergUpdater

        return IcebergUpdater
    raise AttributeError(name)
