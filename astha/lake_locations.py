"""The lake's locations: the registry keeps them, so that no command takes them from its working directory.

`astha up` and `astha registry migrate` record those of the settings. If there are none, the first process that needs
one records `warehouse` beside the registry's SQLite file; with a registry on a server it is refused, as no directory is
the same for every process. From then on every process uses the recorded ones, and settings that say something else are
refused. `astha registry locations` shows and changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

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
    that choose where new files go.

    Raises ConfigError if the settings name others, or if locations are to be recorded and no warehouse is known.
    """
    recorded = await store.get_lake_locations()
    known = _known(settings, recorded)
    if len(recorded) < 2 and record:
        if "warehouse" not in known:
            raise ConfigError(
                f"{settings.registry.shown} has no warehouse yet, the place of new tables and topics: set it once with "
                f"`{_CHANGE} --warehouse LOCATION` (a directory, or s3://bucket/prefix), or set lake.warehouse"
            )
        recorded = await store.ensure_lake_locations(known)
        known = _known(settings, recorded)
    for name, location in explicit_locations(settings).items():
        if recorded.get(name, location) != location:
            raise ConfigError(
                f"lake.{name} is {location}, but that of this registry is {recorded[name]}: remove the setting, or "
                f"change the registry's with `{_CHANGE} --{name} {location}`"
            )
    lake = settings.lake.model_copy(update={str(name): location for name, location in known.items()})
    return settings.model_copy(update={"lake": lake})


async def record_explicit(settings: Settings, store: LakeLocations) -> bool:
    """Records the locations that the settings name, unless there are others: then raises ConfigError. Returns whether
    the first write knows its warehouse.
    """
    given = explicit_locations(settings)
    if given:
        await located(settings, store, record="warehouse" in given)
    return settings.registry.is_file or "warehouse" in await store.get_lake_locations()


def explicit_locations(settings: Settings) -> dict[LocationName, str]:
    """Returns the canonical locations that the settings name, without defaults."""
    lake = settings.lake
    found: dict[LocationName, str] = {}
    if "warehouse" in lake.model_fields_set:
        found["warehouse"] = canonical(lake.warehouse)
    if lake.streams is not None:
        found["streams"] = canonical(lake.streams)
    return found


def _known(settings: Settings, recorded: Mapping[str, str]) -> dict[LocationName, str]:
    """Returns the locations of the registry, else those of the settings, else the default of a registry in a file."""
    known: dict[LocationName, str] = explicit_locations(settings)
    for name in get_args(LocationName):
        if name in recorded:
            known[name] = recorded[name]
    if "warehouse" not in known and settings.registry.is_file:
        file = sqlite_path(parse_url(settings.registry.url.get_secret_value()))
        known["warehouse"] = canonical(settings.lake.warehouse, base=file.absolute().parent)
    if "streams" not in known and "warehouse" in known:
        known["streams"] = join(known["warehouse"], STREAMS)
    return known
