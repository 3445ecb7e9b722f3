"""Debezium from its published jars, fetched once per user, and Java mains that use it, compiled once."""
