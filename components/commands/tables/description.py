"""The description of a table, as one object for JSON and as text."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from astha.cli.output import counted, print_pairs, time_text
from astha.cli.table import print_rows
from astha.quantities import format_size
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from components.lib.lake.schema.transform_syntax import show_order, show_partition
from components.lib.lake.schema.type_syntax import show
from components.lib.lake.table_lookup import full_name
from components.lib.lake.updater_state import FailingTable
from registry.json_text import parse_json
from registry.models import LakeTable, TableMetadata, TableStats


class Column(msgspec.Struct, frozen=True):
    id: int
    name: str
    type: str
    required: bool
    doc: str | None


class Version(msgspec.Struct, frozen=True):
    version: int
    created_at: int
    columns: int | None  # None if it can't be read


class Description(msgspec.Struct, frozen=True):
    """``problem`` says why columns, partitioning and sort order cannot be read; None if they can."""

    database: str
    name: str
    id: int
    location: str
    status: str
    schema_version: int
    columns: list[Column]
    partition_by: list[str]
    sort_by: list[str]
    format: str
    compression: str
    properties: dict[str, object]
    row_count: int
    total_size: int
    file_count: int
    last_modified: int
    versions: list[Version]
    partitions: list[TableStats]
    problem: str | None = None
    trouble: FailingTable | None = None  # if the Iceberg updater cannot update it


def describe(
    table: LakeTable,
    versions: Sequence[TableMetadata],
    shown: TableMetadata,
    partitions: Sequence[TableStats] = (),
    trouble: FailingTable | None = None,
) -> Description:
    problem, columns, partition_by, sort_by = None, [], [], []
    try:
        schema = TableSchema.read(shown, table=full_name(table))
    except SchemaProblem as error:
        problem = str(error)
    else:
        problem, iceberg = schema.unwritable, schema.iceberg
        columns = [
            Column(field.field_id, field.name, show(field.field_type), field.required, field.doc)
            for field in iceberg.fields
        ]
        partition_by = [show_partition(field, iceberg) for field in schema.partition.fields]
        sort_by = [show_order(field, iceberg) for field in schema.order.fields]
    properties = parse_json(shown.properties)
    return Description(
        database=table.database,
        name=table.name,
        id=table.id,
        location=table.location,
        status=table.status,
        schema_version=shown.schema_version,
        columns=columns,
        partition_by=partition_by,
        sort_by=sort_by,
        format=shown.format,
        compression=shown.compression,
        properties=dict(properties) if isinstance(properties, dict) else {},
        row_count=table.row_count,
        total_size=table.total_size,
        file_count=table.file_count,
        last_modified=table.last_modified,
        versions=[Version(version.schema_version, version.created_at, _width(version)) for version in versions],
        partitions=list(partitions),
        problem=problem,
        trouble=trouble,
    )


def print_description(found: Description) -> None:
    print_pairs(
        {
            "table": f"{found.database}.{found.name}",
            "id": str(found.id),
            "status": found.status if found.trouble is None else f"{found.status}, but not up to date in Iceberg",
            "location": found.location,
            "format": f"{found.format}, {found.compression}",
            "partitioned by": ", ".join(found.partition_by) or "nothing",
            "sorted by": ", ".join(found.sort_by) or "nothing",
            "rows": f"{found.row_count:,} in {counted(found.file_count, 'file')}, {format_size(found.total_size)}",
            "last modified": time_text(found.last_modified),
            "schema version": f"{found.schema_version} of {found.versions[-1].version}",
        }
    )
    if found.trouble is not None:
        click.echo(f"\n{found.trouble.summary}")
    if found.columns:
        click.echo()
        rows = [
            [str(column.id), column.name, column.type + ("!" if column.required else ""), column.doc or ""]
            for column in found.columns
        ]
        print_rows(("id", "column", "type", ""), rows, right=("id",))
    if found.properties:
        click.echo("\nproperties")
        for name, value in sorted(found.properties.items()):
            click.echo(f"  {name} = {value}")
    if len(found.versions) > 1:
        click.echo()
        versions = [
            [
                str(version.version),
                time_text(version.created_at),
                "?" if version.columns is None else str(version.columns),
            ]
            for version in found.versions
        ]
        print_rows(("version", "created", "columns"), versions, right=("version", "columns"))
    if found.partitions:
        click.echo()
        print_partitions(found.partitions)


def print_partitions(partitions: Sequence[TableStats]) -> None:
    rows = [
        [
            stats.partition_path or "(none)",
            f"{stats.row_count:,}",
            f"{stats.file_count:,}",
            format_size(stats.total_size),
        ]
        for stats in partitions
    ]
    print_rows(("partition", "rows", "files", "size"), rows, right=("rows", "files", "size"))


def _width(version: TableMetadata) -> int | None:
    try:
        return len(TableSchema.read(version).iceberg.fields)
    except SchemaProblem:
        return None
