"""Settings of a sink's format."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class FormatSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["debezium", "cloudevents", "json"] = Field(
        "debezium", description="Format of changes: Debezium's envelope, CloudEvents 1.0, or plain JSON."
    )
    schemas: bool = Field(
        False,
        description="Debezium only: send the Kafka Connect schema with each key and value, for readers that set"
        " schemas.enable.",
    )
    mode: Literal["structured", "binary"] = Field(
        "structured",
        description="CloudEvents only: attributes in the message's JSON, or in its headers (user properties on MQTT).",
    )
