"""What the sinks for Kafka and MQTT cost, beside bare clients."""
