"""The lake's locations: the registry keeps them, so that no command takes them from its working directory.

The first process that writes records them: from the settings, else `warehouse` beside the registry's SQLite file, or in
the working directory if the registry is a server. From then on every process uses the recorded ones; settings that say
something else are refused. `astha registry locations` shows and changes them.
"""

from __future__ import annotations

from pathlib import Path

from astha.errors import ConfigError
from astha.locations import canonical, join
from astha.settings import Settings
from registry.contract import LakeLocations
from registry.engines import parse_url, sqlite_path
from registry.models import LocationName

STREAMS = "streams"
"""The directory in the warehouse where the objects of topics go by default."""

_CHANGE = "astha registry locations"


async def located(settings: Settings, store: LakeLocations, *, record: bool = False) -> Settings:
    """Returns the settings with the registry's locations. With ``record``, records them if there are none: for callers
    that write files.

    Raises ConfigError if the settings name others.
    """
    recorded = await store.get_lake_locations()
    if len(recorded) < 2 and record:
        recorded = await store.ensure_lake_locations(_wanted(settings, recorded))
    given = explicit_locations(settings)
    for name, location in given.items():
        if recorded.get(name, location) != location:
            raise ConfigError(
                f"lake.{name} is {location}, but that of this registry is {recorded[name]}: remove the setting, or "
                f"change the registry's with `{_CHANGE} --{name} {location}`"
            )
    if not recorded:
        recorded = {str(name): location for name, location in _wanted(settings, {}).items()}
    lake = settings.lake.model_copy(update=recorded)
    return settings.model_copy(update={"lake": lake})


async def record_explicit(settings: Settings, store: LakeLocations) -> None:
    """Records the locations that the settings name, unless there are others: then raises ConfigError."""
    given = explicit_locations(settings)
    if given:
        await located(settings, store, record="warehouse" in given)


def explicit_locations(settings: Settings) -> dict[LocationName, str]:
    """Returns the canonical locations that the settings name, without defaults."""
    lake = settings.lake
    found: dict[LocationName, str] = {}
    if "warehouse" in lake.model_fields_set:
        found["warehouse"] = canonical(lake.warehouse)
    if lake.streams is not None:
        found["streams"] = canonical(lake.streams)
    return found


def _wanted(settings: Settings, recorded: dict[str, str]) -> dict[LocationName, str]:
    given = explicit_locations(settings)
    warehouse = recorded.get("warehouse") or given.get("warehouse")
    if warehouse is None:
        base: Path | None = None
        if settings.registry.backend == "sqlite":
            base = sqlite_path(parse_url(settings.registry.url.get_secret_value())).absolute().parent
        warehouse = canonical(settings.lake.warehouse, base=base)
    streams = recorded.get("streams") or given.get("streams") or join(warehouse, STREAMS)
    return {"warehouse": warehouse, "streams": streams}
