"""The compactor: small files of a partition become right-sized ones, and never at the cost of a row.

In: `table_files` and `table_stats`. Out: swaps of files in the registry, and a decision kept for each.
Guaranteed: rows and checksums of what comes out equal those of what went in, or nothing is swapped.
"""
