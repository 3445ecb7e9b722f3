"""The state item: the number of the last commit, the last ids, and the commit that is still being applied.

Every commit replaces it under the condition that it is still as the transaction read it, so all commits of a domain
happen one after the other, and what a transaction has read is what it changes.
"""

from __future__ import annotations

import msgspec

from registry.stores.dynamodb.client import Action, Attributes, Condition, Item
from registry.stores.dynamodb.layout import ItemKey

VERSION = 1
"""Of the layout of the items."""


class Domain(msgspec.Struct, frozen=True):
    """Rows that are committed in one sequence. ``logged``: each commit has an entry in the commit log."""

    name: str
    logged: bool

    @property
    def key(self) -> ItemKey:
        return f"state:{self.name}", "="


REGISTRY = Domain("registry", logged=True)
DAEMON = Domain("daemon", logged=False)
"""Ledger, leases and presence of daemons: written all the time, and not published."""


class State(msgspec.Struct, frozen=True):
    sequence: int
    ids: dict[str, int]
    time: int
    transaction: str
    pending: str | None = None  # the transaction whose changes are committed, and not all applied
    chunks: int = 0  # of that transaction
    lock: str | None = None  # of a bulk load
    version: int = VERSION

    @classmethod
    def of(cls, item: Item) -> State:
        found = item.attributes
        return cls(
            sequence=_number(found["seq"]),
            ids=msgspec.json.decode(str(found["ids"]), type=dict[str, int]),
            time=_number(found["time"]),
            transaction=str(found["tx"]),
            pending=_text(found.get("pending")),
            chunks=_number(found.get("chunks", 0)),
            lock=_text(found.get("load")),
            version=_number(found["version"]),
        )

    def attributes(self) -> Attributes:
        return {
            "seq": self.sequence,
            "ids": msgspec.json.encode(self.ids, order="sorted").decode(),
            "time": self.time,
            "tx": self.transaction,
            "pending": self.pending,
            "chunks": self.chunks,
            "load": self.lock,
            "version": self.version,
        }

    def replaced_by(self, domain: Domain, following: State) -> Action:
        """The action that replaces this state, if it is still the current one."""
        unchanged = Condition({"seq": self.sequence, "pending": self.pending, "load": self.lock})
        return Action("put", domain.key, following.attributes(), unchanged)

    def still_applying(self, domain: Domain) -> Action:
        return Action("check", domain.key, condition=Condition({"pending": self.pending}))


def _number(value: str | int | bytes) -> int:
    assert isinstance(value, int)  # noqa: S101  (as it was written)
    return value


def _text(value: str | int | bytes | None) -> str | None:
    return None if value is None else str(value)
