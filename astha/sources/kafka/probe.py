"""Reads one record of a topic, for `astha check`."""

from __future__ import annotations

import asyncio

from astha.errors import SourceLost
from astha.sources.kafka.reader_thread import ReaderThread
from astha.sources.kafka.topic import KafkaTopic


async def next_payload(topic: KafkaTopic, client_id: str, within_s: float) -> bytes | None:
    """Returns the next record that arrives, or None. Raises ConfigError, or SourceLost if the broker is not reachable.
    Commits nothing.
    """
    reader = ReaderThread(topic, client_id, None, lambda _: None)
    reading = asyncio.ensure_future(reader.next())
    try:
        await asyncio.wait([reading], timeout=within_s)
        if reader.failure is not None and not reading.done():
            await asyncio.wait([reading], timeout=topic.settings.connect_timeout_s)
        if reading.done():
            chunk = reading.result()
            return chunk.records[-1][1] if chunk is not None and chunk.records else None
        if reader.failure is not None:
            raise SourceLost(reader.failure)
        return None
    finally:
        reading.cancel()
        await reader.stop()
