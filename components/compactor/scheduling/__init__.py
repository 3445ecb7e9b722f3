"""Which partitions are worth a compaction, which of them first, and why: pure, with the clock passed in.

In: events of files and statistics, properties of tables, the journal's last hour. Out: a partition to compact next, and
a decision to keep for every one that crossed a threshold, declines included.
Guaranteed: counts equal the registry's files after every transaction; a decision reads nothing; memory goes by
partitions, never by files.
"""
