"""The segment store: records of topic partitions in objects of S3-compatible storage, by offset.

In: appends of records. Out: objects that hold segments of many partitions, and rows of `segments` that say where.
Guaranteed: an acknowledged record is stored once, in order, unchanged, and can be read for as long as it is retained.
"""
