"""The sources of committed changes: PostgreSQL's WAL, SQLite's change log, and the stream of another daemon.

In: a database, or a topic of Kafka or MQTT. Out: batches of `Transaction`, in commit order, from the acknowledged
position on. Guaranteed: nothing uncommitted, nothing skipped silently; a break in the history is reported as a `Gap`.
"""
