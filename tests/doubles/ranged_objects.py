"""Objects in memory that record requests, and can delay or damage responses."""

from __future__ import annotations

import asyncio

from components.lib.lake.storage.objects import ObjectMissing


class RangedObjects:
    """`requests` lists every requested range. A cleared `gate` delays responses."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.requests: list[tuple[str, int, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: list[Exception] = []

    async def get_range(self, uri: str, start: int, length: int) -> bytes:
        self.requests.append((uri, start, length))
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        if uri not in self.contents:
            raise ObjectMissing(f"{uri} does not exist")
        return self.contents[uri][start : start + length]

    def damage(self, uri: str, place: int) -> None:
        data = bytearray(self.contents[uri])
        data[place] ^= 1
        self.contents[uri] = bytes(data)
