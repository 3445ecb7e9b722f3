"""Settings that used to be a component's own: whoever still gives one is told where it went."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class SharedThreshold(BaseModel):
    """Base of the settings of components that had a threshold of their own for stale uploads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, given: Any) -> Any:
        if isinstance(given, dict) and "intents_stale_after_s" in given:
            raise ValueError(
                "intents_stale_after_s is one setting for all components now: set lake.intents_stale_after_s in "
                "astha.yaml, and remove it here"
            )
        return given
