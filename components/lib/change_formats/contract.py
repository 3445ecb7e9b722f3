"""What every format takes and returns."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

import msgspec

from astha.events import Event
from registry.models import Row
from registry.position import Position

Binding: TypeAlias = Literal["kafka", "mqtt"]


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of any transport. On MQTT, `headers` are user properties, and the format's `content_type` is the
    property Content Type.
    """

    value: bytes | None  # None: a tombstone
    headers: tuple[tuple[str, bytes], ...] = ()  # the format's own
    key: bytes | None = None


class Origin(msgspec.Struct, frozen=True):
    """The stream that a change belongs to."""

    name: str  # its logical name: the sink's topic prefix
    group: str
    epoch: int
    database: str  # "postgresql", "cockroachdb", "sqlite" or "dynamodb"


class ChangeFormat(Protocol):
    """Encodes changes. Instances keep the constant parts of an origin and of a commit, so one thread uses one instance,
    and the events of a commit are given in order, from its first one.
    """

    @property
    def content_type(self) -> str: ...

    def change(self, event: Event[Row], origin: Origin, now_ms: int) -> Message:
        """Encodes a change; its key is that of `event.data`. Split updates of the key with `split_key_change` first. In
        a compacted topic, a DELETE is followed by the tombstone of its key.
        """
        ...

    def snapshot_row(self, row: Row, position: Position, origin: Origin, now_ms: int, last: bool) -> Message:
        """Encodes a row that was read in a refresh. All changes sent afterwards have positions above this one. `last`
        marks the last row of the refresh.
        """
        ...

    def key(self, row: Row, origin: Origin) -> bytes:
        """Returns the key of this row's messages."""
        ...

    def tombstone(self, key: bytes) -> Message: ...
