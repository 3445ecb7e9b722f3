"""Where the acknowledged position is kept: in the registry, because a changefeed has no slot.

One row of `source_identity` names the history that the group's positions belong to, another has the position in it. The
table is not published: writing it is no change that the daemon would read.
"""

from __future__ import annotations

import msgspec
import structlog

from registry.contract import MetadataStore
from registry.errors import RegistryError
from registry.position import Position

log = structlog.get_logger(__name__)


class Recorded(msgspec.Struct, frozen=True):
    """None: nothing is recorded, or nothing that belongs to the history."""

    identity: str | None
    position: Position | None


class AcknowledgedPosition:
    """Of one group. Only its leader writes it; a deposed leader may set it back a little, which repeats changes."""

    def __init__(self, store: MetadataStore, group: str) -> None:
        self._store = store
        self._name = f"changefeed:{group}"
        self._written: str | None = None

    async def read(self) -> Recorded:
        """Raises RegistryError if the registry does not answer."""
        history = await self._store.get_source_identity(self._name)
        position = await self._store.get_source_identity(f"{self._name}:position")
        if history is None:
            return Recorded(None, None)
        self._written = "" if position is None else position.identity
        identity, _, number = self._written.rpartition("@")
        known = identity == history.identity and number.isdecimal()
        return Recorded(history.identity, Position(int(number)) if known else None)

    async def begin(self, identity: str, position: Position) -> None:
        """Records a new history, its first position before it: after a crash between the two it is still unknown."""
        self._written = None
        await self._write(f"{identity}@{position}")
        await self._store.record_source_identity(self._name, identity)

    async def keep(self, identity: str, position: Position) -> None:
        """Writes the position if it is another one. A failure is only logged: changes would be repeated."""
        text = f"{identity}@{position}"
        if text == self._written:
            return
        try:
            await self._write(text)
        except RegistryError as error:
            log.info("acknowledged position can't be recorded now", position=position, error=str(error))

    async def _write(self, text: str) -> None:
        await self._store.record_source_identity(f"{self._name}:position", text)
        self._written = text
