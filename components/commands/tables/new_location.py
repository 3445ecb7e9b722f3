"""The location of a new table: not shared with another table, and writable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astha.cli.exit_codes import Exit, Failure
from astha.settings import Settings
from components.lib.lake.storage.location_checks import free_default, probe_location, require_free
from components.lib.lake.storage.locations import canonical
from components.lib.lake.storage.objects import Objects, StorageError
from registry.engines import parse_url, sqlite_path
from registry.models import LakeTable

_PROBE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class NewLocation:
    """``location`` is None unless the operator has chosen one. ``probed``: whether a file is written there first."""

    settings: Settings
    database: str
    name: str
    location: str | None
    probed: bool

    async def choose(self, tables: Sequence[LakeTable], namespaces: Sequence[str]) -> str:
        """Raises `BadLocation` if it is not free, `Failure` if no files can be written there."""
        warehouse = self.settings.lake.warehouse
        location = self.location or free_default(warehouse, self.database, self.name, tables)
        registry = self.settings.registry
        file = sqlite_path(parse_url(registry.url.get_secret_value())) if registry.backend == "sqlite" else None
        require_free(location, tables, warehouse=canonical(warehouse), registry_file=file, namespaces=namespaces)
        if self.probed:
            await self._probe(location)
        return location

    async def _probe(self, location: str) -> None:
        objects = Objects(self.settings.lake, timeout_s=_PROBE_TIMEOUT_S, retry_s=_PROBE_TIMEOUT_S)
        try:
            await probe_location(objects, location)
        except StorageError as error:
            reason = self.settings.redactor()(str(error))
            raise Failure(
                f"{location} takes no files, so nothing was created: {reason} (--no-check if only the daemon reaches "
                "it)",
                Exit.UNAVAILABLE,
            ) from error
