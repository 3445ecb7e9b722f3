"""The snapshotter: named states of a table, kept for as long as they are wanted, and what nobody refers to removed.

In: `table_metadata`, `table_files` and `table_snapshots`. Out: Iceberg tags, rows of `table_snapshots` that say what
came of each request, and deleted files.
Guaranteed: a snapshot holds everything that was committed before it was asked for; nothing that a retained Iceberg
snapshot refers to is ever deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from astha.subscribers import ComponentContext

if TYPE_CHECKING:
    from components.snapshotter.subscriber import Snapshotter

__all__ = ["create"]

needs_registry_url = True
"""For the catalog, which is in the registry's database unless the settings name another."""


def create(settings: Mapping[str, Any], context: ComponentContext) -> Snapshotter:
    """ValueError (pydantic's) if the settings are not this component's."""
    # Here, because `astha --help` loads this package's commands, but should not wait for PyIceberg.
    from components.snapshotter.settings import SnapshotterSettings
    from components.snapshotter.subscriber import Snapshotter

    return Snapshotter(SnapshotterSettings.model_validate(dict(settings)), context)
