"""The Iceberg updater: the registry's tables as Iceberg tables, exactly once and always comparable.

In: `table_metadata` and `table_files`. Out: Iceberg commits, each with the registry's position and a digest in it.
Guaranteed: a registry transaction is in one snapshot or in none; a redelivered one changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from astha.subscribers import ComponentContext

if TYPE_CHECKING:
    from components.iceberg_updater.subscriber import IcebergUpdater

__all__ = ["IcebergUpdater", "create"]

needs_registry_url = True
"""For the catalog, which is in the registry's database unless the settings name another."""


def create(settings: Mapping[str, Any], context: ComponentContext) -> IcebergUpdater:
    """ValueError (pydantic's) if the settings are not this component's."""
    from components.iceberg_updater.settings import UpdaterSettings
    from components.iceberg_updater.subscriber import IcebergUpdater

    return IcebergUpdater(UpdaterSettings.model_validate(dict(settings)), context)


def __getattr__(name: str) -> Any:
    """`IcebergUpdater`, when somebody wants it: `astha --help` loads this package's commands, but not PyIceberg."""
    if name == "IcebergUpdater":
        from components.iceberg_updater.subscriber import IcebergUpdater

        return IcebergUpdater
    raise AttributeError(name)
