"""The MQTT sink: publishes the registry's changes for people and devices, and its transactions for followers.

In: events of whatever tables its entry lists. Out: MQTT 5 messages at QoS 1.
Guaranteed: at least once, in commit order; a delivery is done when the broker has acknowledged every message of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from astha.subscribers import ComponentContext

if TYPE_CHECKING:
    from components.mqtt_sink.subscriber import MqttSink

__all__ = ["create"]


def create(settings: Mapping[str, Any], context: ComponentContext) -> MqttSink:
    """Raises ValueError (pydantic's) if the settings are invalid."""
    from components.mqtt_sink.settings import MqttSettings
    from components.mqtt_sink.subscriber import MqttSink

    return MqttSink(MqttSettings.model_validate(dict(settings)), context)
