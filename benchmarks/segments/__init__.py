"""Appends, reads and metadata of the segment store, against LZ4 and one object per append."""
