"""``python create_topics.py URL NAME...`` commits one topic after the other."""

from __future__ import annotations

import asyncio
import sys

from registry.connect import open_store


async def main(url: str, *names: str) -> None:
    store = await open_store(url)
    try:
        for name in names:
            await store.create_topic(name, 1)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
