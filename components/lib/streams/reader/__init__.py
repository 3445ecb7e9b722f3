"""Reading: from an offset to blocks to records, with caches in memory and on disk, and prefetching."""
