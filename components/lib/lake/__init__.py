"""The lake's library: schemas, partitions, storage, files, registration, Iceberg.

In: the registry's rows and Arrow tables. Out: Iceberg's types, Parquet files, commits.
Guaranteed: one implementation of each format of decision 0010. Nothing here subscribes to events.
"""
