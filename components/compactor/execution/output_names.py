"""Names of the files that a job may write, each with an upload intent before it is used."""

from __future__ import annotations

from collections.abc import Sequence

from components.compactor.planning.compaction_spec import CompactionSpec
from components.lib.lake.files import engine_of
from components.lib.lake.registration.upload_intents import purpose_of
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.locations import file_location
from registry.clock import Clock
from registry.contract import Files
from registry.models import TableFile

_SPARE = 1  # a merge may need one file more than the sizes of its inputs suggest


class OutputNames:
    """The names of one job. ``owner`` owns their intents."""

    def __init__(self, store: Files, clock: Clock, owner: str, table_id: int) -> None:
        self._store = store
        self._clock = clock
        self._purpose = purpose_of("compaction", table_id)
        self._in_use: set[str] = set()
        self.owner = owner

    def make(self, spec: CompactionSpec, files: Sequence[TableFile]) -> list[str]:
        count = spec.outputs_of(files)[0] + _SPARE
        current = spec.versions[0]
        extension = engine_of(TableSchema.of(current, table=spec.name), current.engine_config).extension
        now = self._clock.now_ms()
        location = spec.table.location
        return [file_location(location, spec.partition_path, extension, now) for _ in range(count)]

    async def announce(self, uris: Sequence[str]) -> None:
        self._in_use.update(uris)
        await self._store.record_intents(uris, purpose=self._purpose, owner=self.owner)

    async def renew(self) -> None:
        """Renews the intents of the names in use."""
        if self._in_use:
            await self._store.renew_intents(sorted(self._in_use), owner=self.owner)

    def forget(self, uris: Sequence[str]) -> None:
        """Stops renewing: they are registered, removed, or left to the cleaner."""
        self._in_use.difference_update(uris)
