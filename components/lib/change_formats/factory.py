"""Opens the format that a sink's settings name."""

from __future__ import annotations

from components.lib.change_formats.cloud_events import BinaryCloudEvents, StructuredCloudEvents
from components.lib.change_formats.contract import Binding, ChangeFormat
from components.lib.change_formats.debezium import DebeziumFormat
from components.lib.change_formats.plain_json import PlainJsonFormat
from components.lib.change_formats.settings import FormatSettings


def open_format(settings: FormatSettings, binding: Binding) -> ChangeFormat:
    """Returns a new format, for one thread."""
    if settings.format == "debezium":
        return DebeziumFormat(settings.schemas)
    if settings.format == "json":
        return PlainJsonFormat()
    return StructuredCloudEvents(binding) if settings.mode == "structured" else BinaryCloudEvents(binding)
