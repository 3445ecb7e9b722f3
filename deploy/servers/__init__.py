"""Real servers for tests, demos and benchmarks, from jars: fetched once per user, started on loopback, stopped again."""
