"""A cache of topics, partitions and segment metadata over any store.

In: reads, and change events of all writers. Out: rows that reflect every event applied so far.
Guaranteed: no row is older than an applied event; an offset that exists is always found.
"""

from registry.cache.entries import MetadataCachePolicy, RowChange
from registry.cache.lru import CacheCounters
from registry.cache.segment_index import IndexPolicy, SegmentIndex
from registry.cache.store import CachedStore

__all__ = ["MetadataCachePolicy", "CachedStore", "RowChange", "CacheCounters", "IndexPolicy", "SegmentIndex"]
