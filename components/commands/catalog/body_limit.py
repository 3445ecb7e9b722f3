"""A bound on the bytes of all request bodies that are in memory at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from astha.byte_semaphore import ByteSemaphore
from components.commands.catalog.errors import Unavailable

LARGEST = 16 * 1024 * 1024
"""Bytes of one body."""

_WAIT_S = 10.0


class BodyLimit:
    """Requests wait in their order of arrival. Those without a body don't."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = ByteSemaphore(max_bytes)

    @asynccontextmanager
    async def hold(self, request: web.Request) -> AsyncIterator[None]:
        """Reserves memory for the body during the block, in which it may be read. Raises Unavailable if there is none
        in time. A body of unknown size counts as the largest one.
        """
        if not request.body_exists:
            yield
            return
        declared = request.content_length
        size = LARGEST if declared is None else min(declared, LARGEST)
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._bytes.acquire(size)
        except TimeoutError as error:
            raise Unavailable(
                f"the bodies of other requests have the {self._max_bytes} bytes of catalog.max_bodies_bytes: try again"
            ) from error
        try:
            yield
        finally:
            self._bytes.release(size)
