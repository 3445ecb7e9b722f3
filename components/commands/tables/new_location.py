"""Where a new table goes: a place of its own that takes files."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from astha.cli.exit_codes import Exit, Failure
from astha.settings import Settings
from components.lib.lake.storage.location_checks import overlap, probe_location, require_free
from components.lib.lake.storage.locations import canonical, table_location
from components.lib.lake.storage.objects import Objects, StorageError
from registry.engines import parse_url, sqlite_path
from registry.models import LakeTable

_ANSWER_S = 10.0


@dataclass(frozen=True)
class Place:
    """``location`` if somebody has chosen one; ``tried`` unless it is to be taken for good."""

    settings: Settings
    database: str
    name: str
    location: str | None
    tried: bool

    async def choose(self, tables: Sequence[LakeTable]) -> str:
        """BadLocation if it is not free, Failure if it takes no files."""
        location = self.location or self._default(tables)
        registry = self.settings.registry
        file = None if registry.is_postgres else sqlite_path(parse_url(registry.url.get_secret_value()))
        require_free(location, tables, warehouse=canonical(self.settings.lake.warehouse), registry_file=file)
        if self.tried:
            await self._try(location)
        return location

    def _default(self, tables: Sequence[LakeTable]) -> str:
        """A renamed table has kept the place that its former name stands for: then another one beside it."""
        usual = table_location(self.settings.lake.warehouse, self.database, self.name)
        if not any(overlap(usual, table.location) for table in tables):
            return usual
        return f"{usual}-{secrets.token_hex(6)}"

    async def _try(self, location: str) -> None:
        try:
            await probe_location(Objects(self.settings.lake, timeout_s=_ANSWER_S, retry_s=_ANSWER_S), location)
        except StorageError as error:
            told = self.settings.concealment()(str(error))
            raise Failure(
                f"{location} takes no files, so nothing was created: {told} (--no-check if only the daemon reaches it)",
                Exit.UNAVAILABLE,
            ) from error
