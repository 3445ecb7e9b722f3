"""Which partitions are worth a compaction, in which order, and why. Does no I/O; the clock is passed in.

In: events of files and statistics, properties of tables, the journal's last hour. Out: the partition to compact next,
and a decision for the journal for every partition that crossed a threshold, declines included.
Guaranteed: counts equal the registry's files after every transaction; a decision reads nothing; memory grows with the
number of partitions, not of files.
"""
