"""Debezium's embedded engine as a reader to compare with, in a JVM of its own and with the settings it does best with.

Its jars come from a Maven repository, once per user; `Drain.java` is compiled once, into the same cache.
"""
