"""Opens the registry for a command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from astha.cli.progress import progress
from astha.settings import Settings
from registry.connect import open_store
from registry.contract import MetadataStore

T = TypeVar("T")


def with_store(settings: Settings, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Opens the registry, returns the result of `work`, closes the registry. A terminal shows if that takes long."""

    async def run() -> T:
        store = await open_store(settings.registry.url.get_secret_value(), settings=settings.registry.store)
        try:
            return await work(store)
        finally:
            await store.close()

    with progress("waiting for the registry", quiet=True):
        return asyncio.run(run())
