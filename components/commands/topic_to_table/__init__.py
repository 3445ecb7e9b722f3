"""`astha topics to-table`: inserts the records of a topic into a table, exactly once, on Spark.

In: a topic's records, in micro-batches. Out: data files of a table.
Guaranteed: the files of a micro-batch and the consumer group's new offsets are registered in one transaction.
"""
