"""The REST catalog beside Iceberg's reference server: commits, loading, and the time from a commit to what follows."""
