"""Clients of Kafka and MQTT brokers, for the sinks that send and the sources that follow.

In: settings, and the names that they have for their user. Out: open clients, and errors that say what to correct.
Everything that uses private parts of kafka-python, aiomqtt and paho-mqtt is here. Needs the extras `kafka` or `mqtt`.
"""
