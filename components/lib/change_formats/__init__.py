"""Formats of row changes for readers without Astha code: the Debezium envelope, CloudEvents 1.0, plain JSON.

In: events and rows of a snapshot. Out: messages (key, value, headers) that a sink sends to Kafka or MQTT.
Guaranteed: all formats have the same keys and carry the position, so that a reader can recognize repetitions. The names
below are the interface of the sinks and stable; docs/parts/fanout.md describes every field.
"""

from components.lib.change_formats.contract import Binding, ChangeFormat, Message, Origin
from components.lib.change_formats.factory import open_format
from components.lib.change_formats.keys import key_of, split_key_change
from components.lib.change_formats.settings import FormatSettings

__all__ = [
    "Binding", "ChangeFormat", "FormatSettings", "Message", "Origin",
    "key_of", "open_format", "split_key_change",
]  # fmt: skip
