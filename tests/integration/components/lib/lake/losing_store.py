"""A real registry behind a connection that loses calls and responses."""

from __future__ import annotations

import random
from collections.abc import Sequence

from registry.contract import MetadataStore
from registry.errors import Unavailable
from registry.forwarding import ForwardingStore
from registry.inputs import Registration
from registry.models import TableFile


class LosingStore(ForwardingStore):
    """Loses one in four calls of `register_files`: half of them before the call, half after it."""

    def __init__(self, inner: MetadataStore, seed: int) -> None:
        super().__init__(inner)
        self._inner_store = inner
        self._random = random.Random(seed)
        self.lost = 0

    async def register_files(self, registrations: Sequence[Registration]) -> list[list[TableFile]]:
        luck = self._random.random()
        if luck < 0.125:
            self.lost += 1
            raise Unavailable("the call was lost")
        answer = await self._inner_store.register_files(registrations)
        if luck > 0.875:
            self.lost += 1
            raise Unavailable("the answer was lost")
        return answer
