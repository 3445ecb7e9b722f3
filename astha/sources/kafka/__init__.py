"""A transaction stream on a Kafka topic as a `Source`. Imported only if a daemon follows one: it needs an extra."""
