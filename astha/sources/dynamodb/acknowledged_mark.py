"""Where a group of daemons continues: the last mark that all components have passed, and the table that it belongs to.

It is an item of its own in the registry's table. A lost or older one only repeats commits. It is written without a
condition: a deposed leader's mark is one that its components had passed, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from registry.position import Position
from registry.stores.dynamodb.client import Attributes, DynamoClient
from registry.stores.dynamodb.commit_log import Mark

_MAX_WAITING = 8_192


class Acknowledged(msgspec.Struct, frozen=True):
    mark: Mark
    table: str  # the identity of the DynamoDB table


class AcknowledgedMark:
    def __init__(self, client: DynamoClient, group: str) -> None:
        self._client = client
        self._key = (f"source:{group}", "=")

    async def read(self) -> Acknowledged | None:
        item = await self._client.get(self._key)
        if item is None:
            return None
        found = item.attributes
        return Acknowledged(Mark(int(found["seq"]), str(found["tx"])), str(found["table"]))

    async def write(self, acknowledged: Acknowledged) -> None:
        mark = acknowledged.mark
        values: Attributes = {"seq": mark.sequence, "tx": mark.transaction, "table": acknowledged.table}
        await self._client.put_many([(self._key, values)])


class WaitingMarks:
    """Marks that were passed on and are not acknowledged. If there are too many, every second one is forgotten: an
    earlier one only repeats some commits.
    """

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()

    def add(self, marks: Iterable[Mark]) -> None:
        self._marks.extend(marks)
        while len(self._marks) > _MAX_WAITING:
            last = len(self._marks) - 1
            self._marks = deque(mark for number, mark in enumerate(self._marks) if number % 2 == 0 or number == last)

    def acknowledge(self, position: Position) -> Mark | None:
        """Returns the last mark up to this position, and forgets it and those before it."""
        found: Mark | None = None
        while self._marks and self._marks[0].sequence <= position:
            found = self._marks.popleft()
        return found

    def clear(self) -> None:
        self._marks.clear()
