"""How much of one transaction a source holds in memory."""

from __future__ import annotations

import msgspec


class TransactionLimits(msgspec.Struct, frozen=True):
    """Beyond these a transaction is not held in memory, and those it concerns refresh instead."""

    events: int = 100_000
    size_bytes: int = 64 * 1024 * 1024
