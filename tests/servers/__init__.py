"""Real servers for tests and benchmarks: fetched once per user, started on loopback, and stopped again."""
