"""The areas of the registry that a component may write to. Imports nothing, so that components can name one cheaply."""

from __future__ import annotations

from enum import StrEnum


class Area(StrEnum):
    STREAMS = "streams"
    LAKE = "lake"
