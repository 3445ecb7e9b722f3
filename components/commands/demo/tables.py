"""The tables of the demo: partitioned by region, sorted by id."""

from __future__ import annotations

from collections.abc import Mapping

from astha.subscribers import ComponentContext
from components.lib.lake.schema.table_definition import parse_definition
from components.lib.lake.storage.locations import table_location


async def create_table(around: ComponentContext, table: str, columns: Mapping[str, str]) -> str:
    """Returns the table's location."""
    database, name = table.split(".")
    definition = {"columns": dict(columns), "partition_by": ["region"], "sort_by": ["id"]}
    location = table_location(around.lake.warehouse, database, name)
    await around.store.create_table(database, name, location, parse_definition(definition).schema().draft())
    return location
