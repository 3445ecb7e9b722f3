"""Topics into tables, exactly once: `astha topics to-table`.

Stands above the segment store, whose topics it reads, the storage manager, whose files it writes, and the compactor,
whose Spark session it uses. A round of records becomes files and the consumer group's step in one registry transaction.
"""
