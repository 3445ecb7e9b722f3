"""CockroachDB: its SQL dialect, how it differs from PostgreSQL, and the registry's schema on it."""

NAME = "cockroachdb"
"""Of its URLs, and of its dialect."""
