"""Spark sessions: how one is started, watched and ended, and what its failures mean.

In: `SparkSettings`. Out: a `Session`, in a JVM of this process's own or on a Spark Connect server.
Guaranteed: a session that can't be had, or was lost, is an error that says what to do; a dead one leaves no process and
no directory, and another can be started. Private parts of PySpark are used in `pyspark_internals` only.
"""
