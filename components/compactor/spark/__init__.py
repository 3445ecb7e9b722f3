"""The host: one Spark session, and how a task gets to a worker of it and back.

In: a `MergeTask`. Out: its `MergeResult`, or an error that says what to do.
Guaranteed: one attempt of a task at a time; who is told that it has ended finds nothing of it later; a session that
died is replaced.
"""
