"""Limits of the memory for one transaction."""

from __future__ import annotations

import msgspec


class TransactionLimits(msgspec.Struct, frozen=True):
    """A larger transaction is not held in memory: the subscribers of its tables refresh instead."""

    events: int = 100_000
    size_bytes: int = 64 * 1024 * 1024
