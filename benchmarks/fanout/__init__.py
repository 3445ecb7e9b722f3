"""What the sinks for Kafka and MQTT cost beside bare clients, and how late a follower is."""
