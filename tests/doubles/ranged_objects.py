"""Objects in memory that count what is asked of them, and can be held back or damaged."""

from __future__ import annotations

import asyncio

from components.lib.lake.storage.objects import ObjectMissing


class RangedObjects:
    """`requests` has every range that was asked for. A cleared `gate` holds answers back."""

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
