"""Iceberg metadata updates for a schema version, with the registry's field ids.

PyIceberg's `create_table` assigns new ids, but the files contain the registry's. So tables are created and evolved by
updates with explicit ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import uuid4

import msgspec
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssignUUIDUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.types import PrimitiveType

from components.lib.lake.iceberg.stamp import SCHEMA_ID, SCHEMA_VERSION
from components.lib.lake.schema.evolution import check_evolution
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema


class SchemaHistory(Protocol):
    """What of a table's metadata is needed to interpret the files of any of its partition specs."""

    @property
    def schemas(self) -> Sequence[Schema]: ...

    def schema(self) -> Schema: ...

    def specs(self) -> Mapping[int, PartitionSpec]: ...


class Evolution(msgspec.Struct):
    """The updates from a table's metadata to a schema version; none if it is current already."""

    updates: list[TableUpdate]
    schema: Schema
    specs: dict[int, PartitionSpec]


def creation(schema: TableSchema, location: str, properties: Mapping[str, str]) -> tuple[TableUpdate, ...]:
    """Returns the updates that create a table with this schema version."""
    order = schema.order if schema.order.fields else UNSORTED_SORT_ORDER
    return (
        AssignUUIDUpdate(uuid=uuid4()),
        UpgradeFormatVersionUpdate(format_version=2),
        AddSchemaUpdate(schema_=_numbered(schema.iceberg, 0)),
        SetCurrentSchemaUpdate(schema_id=-1),
        AddPartitionSpecUpdate(spec=PartitionSpec(*schema.partition.fields, spec_id=0)),
        SetDefaultSpecUpdate(spec_id=-1),
        AddSortOrderUpdate(sort_order=order),
        SetDefaultSortOrderUpdate(sort_order_id=-1),
        SetLocationUpdate(location=location.rstrip("/")),
        SetPropertiesUpdate(updates={**properties, SCHEMA_VERSION: str(schema.version), SCHEMA_ID: "0"}),
    )


def evolution(metadata: TableMetadata, wanted: TableSchema) -> Evolution:
    """Raises `SchemaProblem`, with the column, if Iceberg cannot evolve to the version."""
    updates: list[TableUpdate] = []
    current, specs = metadata.schema(), dict(metadata.specs())
    if not same_columns(current, wanted.iceberg):
        _check(metadata, wanted)
        known = next((schema for schema in metadata.schemas if same_columns(schema, wanted.iceberg)), None)
        if known is None:
            known = _numbered(wanted.iceberg, max(schema.schema_id for schema in metadata.schemas) + 1)
            updates.append(AddSchemaUpdate(schema_=known))
        updates.append(SetCurrentSchemaUpdate(schema_id=known.schema_id))
        current = known
    if spec_key(metadata.spec()) != spec_key(wanted.partition):
        spec = find_spec(specs, wanted.partition)
        if spec is None:
            spec = specs[max(specs) + 1] = PartitionSpec(*wanted.partition.fields, spec_id=max(specs) + 1)
            updates.append(AddPartitionSpecUpdate(spec=spec))
        updates.append(SetDefaultSpecUpdate(spec_id=spec.spec_id))
    updates += _order_updates(metadata, wanted.order)
    wanted_properties = {SCHEMA_VERSION: str(wanted.version), SCHEMA_ID: str(current.schema_id)}
    if any(metadata.properties.get(name) != value for name, value in wanted_properties.items()):
        updates.append(SetPropertiesUpdate(updates=wanted_properties))
    return Evolution(updates, current, specs)


def _check(metadata: TableMetadata, wanted: TableSchema) -> None:
    """Checks columns only: Iceberg keeps every partition spec that a table ever had."""
    current, *earlier = (
        TableSchema(0, schema, wanted.partition, wanted.order) for schema in (metadata.schema(), *metadata.schemas)
    )
    problems = check_evolution(current, wanted, earlier)
    if problems:
        raise SchemaProblem(
            f"schema version {wanted.version} can't be reached from what Iceberg has: {'; '.join(problems)}"
        )


def same_columns(left: Schema, right: Schema) -> bool:
    return left.fields == right.fields and set(left.identifier_field_ids) == set(right.identifier_field_ids)


def spec_key(spec: PartitionSpec) -> tuple[tuple[int, str, str], ...]:
    """Returns a key that is equal for specs that Iceberg considers equal."""
    return tuple((field.source_id, str(field.transform), field.name) for field in spec.fields)


def find_spec(specs: Mapping[int, PartitionSpec], wanted: PartitionSpec) -> PartitionSpec | None:
    return next((spec for spec in specs.values() if spec_key(spec) == spec_key(wanted)), None)


def schema_of(metadata: SchemaHistory, spec: PartitionSpec, current: Schema | None = None) -> Schema:
    """Returns the current schema, or the newest that still has the source columns of the spec."""
    wanted = {field.source_id for field in spec.fields}
    current = current or metadata.schema()
    older = sorted(metadata.schemas, key=lambda schema: schema.schema_id, reverse=True)
    return next((schema for schema in (current, *older) if wanted <= schema.field_ids), current)


def partition_kinds(schema: Schema, spec: PartitionSpec) -> list[PrimitiveType]:
    """Returns the types of partition values, in order; none if a source column was dropped."""
    kinds: list[PrimitiveType] = []
    for field in spec.fields:
        if field.source_id not in schema.field_ids:
            return []
        kind = field.transform.result_type(schema.find_type(field.source_id))
        if isinstance(kind, PrimitiveType):
            kinds.append(kind)
    return kinds


def _order_updates(metadata: TableMetadata, wanted: SortOrder) -> list[TableUpdate]:
    if metadata.sort_order().fields == wanted.fields:
        return []
    for known in metadata.sort_orders:
        if known.fields == wanted.fields:
            return [SetDefaultSortOrderUpdate(sort_order_id=known.order_id)]
    if not wanted.fields:
        return [AddSortOrderUpdate(sort_order=UNSORTED_SORT_ORDER), SetDefaultSortOrderUpdate(sort_order_id=0)]
    number = max((order.order_id for order in metadata.sort_orders), default=0) + 1
    return [
        AddSortOrderUpdate(sort_order=SortOrder(*wanted.fields, order_id=number)),
        SetDefaultSortOrderUpdate(sort_order_id=number),
    ]


def _numbered(schema: Schema, schema_id: int) -> Schema:
    return Schema(*schema.fields, schema_id=schema_id, identifier_field_ids=list(schema.identifier_field_ids))
