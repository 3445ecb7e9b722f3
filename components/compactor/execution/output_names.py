"""Names for the files that a job may write, each under an intent before anybody can use it."""

from __future__ import annotations

from collections.abc import Sequence

from components.compactor.planning.compaction_spec import Assignment
from components.lib.lake.files import engine_of
from components.lib.lake.registration.upload_intents import purpose_of
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.locations import file_location
from registry.clock import Clock
from registry.contract import Files
from registry.models import TableFile

_SPARE = 1  # a merge may need one more file than the sizes of its inputs tell


class Names:
    """Of one job: ``owner`` is that of its intents."""

    def __init__(self, store: Files, clock: Clock, owner: str, table_id: int) -> None:
        self._store = store
        self._clock = clock
        self._purpose = purpose_of("compaction", table_id)
        self._held: set[str] = set()
        self.owner = owner

    def make(self, assignment: Assignment, files: Sequence[TableFile]) -> list[str]:
        count = assignment.outputs_of(files)[0] + _SPARE
        current = assignment.versions[0]
        extension = engine_of(TableSchema.of(current, table=assignment.name), current.engine_config).extension
        now = self._clock.now_ms()
        place = assignment.table.location
        return [file_location(place, assignment.partition_path, extension, now) for _ in range(count)]

    async def announce(self, uris: Sequence[str]) -> None:
        self._held.update(uris)
        await self._store.record_intents(uris, purpose=self._purpose, owner=self.owner)

    async def renew(self) -> None:
        """Those in use, as if recorded now."""
        if self._held:
            await self._store.renew_intents(sorted(self._held), owner=self.owner)

    def forget(self, uris: Sequence[str]) -> None:
        """Not to be renewed any more: registered, removed, or the cleaner's."""
        self._held.difference_update(uris)
