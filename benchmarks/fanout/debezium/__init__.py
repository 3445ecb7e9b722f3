"""Debezium's embedded engine with a Kafka producer in its handler, which is what Debezium Server's Kafka sink is."""
