"""A transaction stream on an MQTT topic as a `Source`. Imported only if a daemon follows one: it needs an extra."""
