"""A component that writes the time of each event to the file that the environment names."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TextIO

from astha.subscribers import Component, ComponentContext, Event, Row, Segment

FILE = "ASTHA_BENCHMARK_EVENTS"


class FirstEvent(Component):
    tables = (Segment,)
    durable = True

    def __init__(self, file: TextIO) -> None:
        self._file = file

    async def on_event(self, event: Event[Row]) -> None:
        self._file.write(f"{time.time()}\n")


def create(settings: object, context: ComponentContext) -> FirstEvent:
    return FirstEvent(Path(os.environ[FILE]).open("a", buffering=1))
