"""The segment store's subscriber: keeps the daemon's caches up to date, merges small segments, enforces retention.

In: committed changes of topics, partitions, segments and leases. Out: woken readers, merged objects, deleted segments.
Guaranteed: no delivery waits for storage; offsets and records of a partition never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from astha.subscribers import ComponentContext

if TYPE_CHECKING:
    from components.segment_store.subscriber import SegmentStore

__all__ = ["create"]


def create(settings: Mapping[str, Any], context: ComponentContext) -> SegmentStore:
    """Raises ValueError (pydantic's) if the settings are invalid."""
    # Imported here, because `astha --help` loads this package's commands.
    from components.segment_store.settings import SegmentStoreSettings
    from components.segment_store.subscriber import SegmentStore

    return SegmentStore(SegmentStoreSettings.model_validate(dict(settings)), context)
