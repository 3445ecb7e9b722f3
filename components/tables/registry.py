"""The registry that a command works on, and the errors of the lake as exit codes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from astha.cli.exits import Exit, Failure
from astha.settings import Settings
from components.lake.types import NotationProblem
from registry.contract import MetadataStore
from registry.opening import open_store

T = TypeVar("T")


def with_store(settings: Settings, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Opens, does it, closes. What somebody wrote wrongly is wrong usage; everything else keeps its own code."""

    async def run() -> T:
        store = await open_store(settings.registry.url.get_secret_value(), settings=settings.registry.store)
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except NotationProblem as problem:
        raise Failure(str(problem), Exit.USAGE) from problem


def assignments(pairs: tuple[str, ...], option: str, example: str) -> dict[str, str]:
    """Of ``NAME=VALUE`` options."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise Failure(f"{option} {pair!r}: write {option} {example}", Exit.USAGE)
        found[name.strip()] = value.strip()
    return found
