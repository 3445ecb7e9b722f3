"""Astha from Python: tables and topics of a lake, without a command line.

In: a registry's URL. Out: a `Lake`, or an `AsyncLake` inside asyncio.
Guaranteed: the same verbs as the commands `tables`, `insert`, `snapshot`, `produce` and `consume`, with their code.

`astha.connect` and `astha.open` are loaded from here on first use.
"""

from components.api.async_lake import AsyncLake, InsertSummary, open_async
from components.api.scan import Scan
from components.api.sync_lake import Lake, connect

__all__ = ["AsyncLake", "InsertSummary", "Lake", "Scan", "connect", "open_async"]
