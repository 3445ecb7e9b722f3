"""Streams: topics of records in objects, written by agents, read by consumers and consumer groups.

In: appends of records. Out: objects with segments of many partitions, rows of `segments` that locate them, and records
by offset. Guaranteed: an acknowledged record is stored once, in order, unchanged, and can be read as long as it is
retained.
"""
