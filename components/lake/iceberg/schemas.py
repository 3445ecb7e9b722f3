"""A schema version as updates of Iceberg's metadata, with the registry's field ids and no others.

PyIceberg's `create_table` gives ids of its own, and the files carry the registry's. So tables are created and evolved
by updates that name their ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

import msgspec
from pyiceberg.exceptions import ResolveError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id, promote
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
from pyiceberg.types import IcebergType, NestedField, PrimitiveType

from components.lake.iceberg.stamp import SCHEMA_VERSION
from components.lake.schema import SchemaProblem, TableSchema


class Evolution(msgspec.Struct):
    """How to get from a table's metadata to a schema version; no updates if it is there already."""

    updates: list[TableUpdate]
    schema: Schema
    specs: dict[int, PartitionSpec]


def creation(schema: TableSchema, location: str, properties: Mapping[str, str]) -> tuple[TableUpdate, ...]:
    """A table that has nothing but this schema version."""
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
        SetPropertiesUpdate(updates={**properties, SCHEMA_VERSION: str(schema.version)}),
    )


def evolution(metadata: TableMetadata, wanted: TableSchema) -> Evolution:
    """SchemaProblem, naming the column, if Iceberg can't get from one to the other."""
    updates: list[TableUpdate] = []
    current, specs = metadata.schema(), dict(metadata.specs())
    if not same_columns(current, wanted.iceberg):
        check_evolution(current, wanted.iceberg, empty=not metadata.snapshots)
        current = _numbered(wanted.iceberg, max(schema.schema_id for schema in metadata.schemas) + 1)
        updates += [AddSchemaUpdate(schema_=current), SetCurrentSchemaUpdate(schema_id=-1)]
    if spec_key(metadata.spec()) != spec_key(wanted.partition):
        spec = find_spec(specs, wanted.partition)
        if spec is None:
            spec = specs[max(specs) + 1] = PartitionSpec(*wanted.partition.fields, spec_id=max(specs) + 1)
            updates.append(AddPartitionSpecUpdate(spec=spec))
        updates.append(SetDefaultSpecUpdate(spec_id=spec.spec_id))
    updates += _order_updates(metadata, wanted.order)
    if updates or metadata.properties.get(SCHEMA_VERSION) != str(wanted.version):
        updates.append(SetPropertiesUpdate(updates={SCHEMA_VERSION: str(wanted.version)}))
    return Evolution(updates, current, specs)


def check_evolution(current: Schema, wanted: Schema, *, empty: bool) -> None:
    """Add, drop, rename, widen and make optional; an empty table may also get required columns."""
    before = index_by_id(current)
    for field_id, field in index_by_id(wanted).items():
        name = wanted.find_column_name(field_id) or field.name
        old = before.get(field_id)
        if old is None:
            if field.required and not empty and not _inside_new(wanted, before, field_id):
                raise SchemaProblem(
                    f"column {name} is new and required, but the rows that are there have no value for it: make it "
                    "optional"
                )
            continue
        _check_column(name, old, field, empty=empty)


def _check_column(name: str, old: NestedField, field: NestedField, *, empty: bool) -> None:
    if field.required and not old.required and not empty:
        raise SchemaProblem(f"column {name} can't become required: rows that are there may have no value")
    if not _reachable(old.field_type, field.field_type):
        raise SchemaProblem(
            f"column {name} can't change from {old.field_type} to {field.field_type}: Iceberg widens int to long, "
            "float to double and a decimal's precision; anything else is a new column"
        )


def _reachable(old: IcebergType, new: IcebergType) -> bool:
    if isinstance(old, PrimitiveType) and isinstance(new, PrimitiveType):
        if old == new:
            return True
        try:
            promote(old, new)
        except ResolveError:
            return False
        # PyIceberg also reads text as bytes and the reverse, which is no evolution of a table.
        return type(old).__name__ not in ("StringType", "BinaryType", "FixedType")
    return type(old) is type(new)


def _inside_new(schema: Schema, before: Mapping[int, NestedField], field_id: int) -> bool:
    """A field of a struct that is new itself has no rows to be missing from."""
    for other_id, field in index_by_id(schema).items():
        if other_id not in before and other_id != field_id and not isinstance(field.field_type, PrimitiveType):
            inner = Schema(field)
            if field_id in inner.field_ids and (not field.required or _inside_new(schema, before, other_id)):
                return True
    return False


def same_columns(left: Schema, right: Schema) -> bool:
    return left.fields == right.fields and set(left.identifier_field_ids) == set(right.identifier_field_ids)


def spec_key(spec: PartitionSpec) -> tuple[tuple[int, str, str], ...]:
    """Specs that Iceberg takes for the same have the same."""
    return tuple((field.source_id, str(field.transform), field.name) for field in spec.fields)


def find_spec(specs: Mapping[int, PartitionSpec], wanted: PartitionSpec) -> PartitionSpec | None:
    return next((spec for spec in specs.values() if spec_key(spec) == spec_key(wanted)), None)


def partition_kinds(schema: Schema, spec: PartitionSpec) -> list[PrimitiveType]:
    """Of the values of a partition, in order; none if a column that they came from is gone."""
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
