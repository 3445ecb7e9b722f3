"""The executor: one Spark session, and how a task gets to a worker and its result back.

In: a `MergeTask`. Out: its `MergeResult`, or an error that says what to do.
Guaranteed: at most one attempt of a task runs at a time; a task that is reported as ended writes nothing any more; a
session that died is replaced.
"""
