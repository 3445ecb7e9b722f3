"""The sources of committed changes: PostgreSQL's WAL and SQLite's change log.

In: a database. Out: batches of `Transaction`, in commit order, from the acknowledged position on.
Guaranteed: nothing uncommitted, nothing skipped silently; a break in the history is reported as a `Gap`.
"""
