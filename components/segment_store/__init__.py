"""The segment store: records of topic partitions in objects of S3-compatible storage, by offset.

In: appends of records. Out: objects that hold segments of many partitions, and rows of `segments` that say where.
Guaranteed: an acknowledged record is stored once, in order, unchanged, and can be read for as long as it is retained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from astha.subscribers import ComponentContext

if TYPE_CHECKING:
    from components.segment_store.subscriber import SegmentStore

__all__ = ["create"]


def create(settings: Mapping[str, Any], context: ComponentContext) -> SegmentStore:
    """ValueError (pydantic's) if the settings are not this component's."""
    # Here, because `astha --help` loads this package's commands, but should not wait for what reading needs.
    from components.segment_store.settings import SegmentStoreSettings
    from components.segment_store.subscriber import SegmentStore

    return SegmentStore(SegmentStoreSettings.model_validate(dict(settings)), context)
