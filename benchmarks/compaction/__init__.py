"""Compaction: decisions and merges, against plain Spark and Iceberg's own procedure."""
