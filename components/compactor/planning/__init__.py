"""What is to be merged: a partition's files as they are now, chosen and divided into groups.

In: a partition and a `CompactionRequest`. Out: a `CompactionPlan`, which says why if it has no groups, and the
`CompactionSpec` of a job. Guaranteed: the registry's rows decide, not the counters; a file that can't be read is left
out for a while.
"""
