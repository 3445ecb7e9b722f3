"""CockroachDB: its SQL dialect, how it differs from PostgreSQL, and the registry's schema on it."""
