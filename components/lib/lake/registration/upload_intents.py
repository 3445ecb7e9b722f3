"""What the purpose of an upload intent says: who wanted the object, and of which table."""

from __future__ import annotations


def purpose_of(work: str, table_id: int) -> str:
    """``insert``, ``compaction``: a word of the writer's."""
    return f"{work} {table_id}"


def table_of(purpose: str) -> int | None:
    """None for a purpose of another form: the intents of streams, for one."""
    number = purpose.rpartition(" ")[2]
    return int(number) if number.isdecimal() else None
