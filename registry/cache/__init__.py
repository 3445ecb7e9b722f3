"""What memory saves: topics, partitions and segment metadata, over any store.

In: reads, and change events of anybody's writes. Out: rows as fresh as the events are.
Guaranteed: never older than an event that was applied; an offset that exists is always found.
"""

from registry.cache.entries import CachePolicy, Change
from registry.cache.lru import Counts
from registry.cache.segment_index import IndexPolicy, SegmentIndex
from registry.cache.store import CachedStore

__all__ = ["CachePolicy", "CachedStore", "Change", "Counts", "IndexPolicy", "SegmentIndex"]
