"""The locations of the lake: where new tables and the objects of streams go, for every process that writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from registry import validation
from registry.models import LakeLocation, LocationName
from registry.schema import lake_locations
from registry.stores.sql.base import SqlBase, select_rows


class SqlLakeLocations(SqlBase):
    async def get_lake_locations(self) -> dict[str, str]:
        return {row.name: row.location for row in await self._rows(LakeLocation, select_rows(LakeLocation))}

    async def ensure_lake_locations(self, locations: Mapping[LocationName, str]) -> dict[str, str]:
        statement = self._insert(lake_locations).on_conflict_do_nothing(index_elements=[lake_locations.c.name])
        async with self._transaction() as connection:
            await connection.execute(statement, self._location_rows(locations))
        return await self.get_lake_locations()

    async def record_lake_locations(self, locations: Mapping[LocationName, str]) -> None:
        statement = self._insert(lake_locations)
        statement = statement.on_conflict_do_update(
            index_elements=[lake_locations.c.name],
            set_={key: statement.excluded[key] for key in ("location", "recorded_at")},
        )
        async with self._transaction() as connection:
            await connection.execute(statement, self._location_rows(locations))

    def _location_rows(self, locations: Mapping[LocationName, str]) -> list[dict[str, object]]:
        check_locations(locations)
        now = self._clock.now_ms()
        return [
            {"name": name, "location": location, "recorded_at": now} for name, location in sorted(locations.items())
        ]


def check_locations(locations: Mapping[LocationName, str]) -> None:
    for name, location in locations.items():
        validation.one_of("name", name, get_args(LocationName))
        validation.non_empty("location", location)
