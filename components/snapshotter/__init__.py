"""The snapshotter: creates and expires named snapshots of tables, and deletes files that no snapshot needs.

In: events of `table_metadata`, `table_files` and `table_snapshots`. Out: Iceberg tags, rows of `table_snapshots` with
the result of each request, and deleted files.
Guaranteed: a snapshot contains everything that was committed before its request; no file that a retained Iceberg
snapshot refers to is ever deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astha.subscribers import ComponentContext
    from components.snapshotter.subscriber import Snapshotter

__all__ = ["create"]

needs_registry_url = True
"""For the catalog, which is in the registry's database unless the settings name another one."""


def create(settings: Mapping[str, Any], context: ComponentContext) -> Snapshotter:
    """Raises ValueError (pydantic's) if the settings are invalid."""
    # Imported here: `astha --help` imports this package's commands and must not load PyIceberg.
    from components.snapshotter.settings import SnapshotterSettings
    from components.snapshotter.subscriber import Snapshotter

    return Snapshotter(SnapshotterSettings.model_validate(dict(settings)), context)
