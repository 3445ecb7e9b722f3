"""Real servers for tests, demos and benchmarks, from jars: fetched once per user, on loopback, stopped again."""
