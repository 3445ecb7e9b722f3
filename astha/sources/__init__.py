"""Where committed changes come from: PostgreSQL's WAL, SQLite's change log.

In: a database. Out: batches of `Transaction`, in commit order, from the acknowledged position on.
Guaranteed: nothing uncommitted, nothing skipped silently; a break in history is said (`Gap`), never hidden.
"""
