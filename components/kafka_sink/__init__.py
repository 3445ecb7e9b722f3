"""Sends every change of the registry to Apache Kafka.

In: committed transactions of the tables in its entry. Out: one topic per table (layout `tables`), or one topic with a
record per commit for followers (layout `transactions`).
Guaranteed: at least once, in commit order per row; compacted topics of layout `tables` converge to the registry's rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from astha.subscribers import ComponentContext

if TYPE_CHECKING:
    from components.kafka_sink.subscriber import KafkaSink

__all__ = ["create"]


def create(settings: Mapping[str, Any], context: ComponentContext) -> KafkaSink:
    """Raises ValueError (pydantic's) if the settings are invalid."""
    from components.kafka_sink.settings import KafkaSinkSettings
    from components.kafka_sink.subscriber import create_sink

    chosen = KafkaSinkSettings.model_validate(dict(settings))
    context.redact(*chosen.secrets())
    return create_sink(chosen, context)
