"""What the lake's components share: schemas, partitions, locations, files, Iceberg.

In: the registry's rows and Arrow tables. Out: Iceberg's types, Parquet files, commits.
Guaranteed: one reading of each format of decision 0010; nothing here subscribes to anything.
"""
