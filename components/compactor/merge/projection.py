"""Converts the rows of a file of any schema version to the table's current schema.

Columns are matched by field id, at every depth: a renamed one is found, a dropped one is left out, a new one is null, a
widened one is cast. A file without ids (an imported one) is read by the names of its version. A column that the table
never had is refused: its values would be lost, and a column of the table that it stands for would become NULL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import ListType, MapType, NestedField, StructType

from components.compactor.merge.task import BadInput
from components.lib.lake.schema.table_schema import TableSchema, inner_fields

_FIELD_ID = b"PARQUET:field_id"


class CannotProject(Exception):
    """A column of a file can't be converted to the table's type."""


@dataclass(frozen=True)
class _Rearrangement:
    """Rows whose columns are the table's, in another order perhaps."""

    found: pa.Schema
    schema: pa.Schema
    places: tuple[int, ...]  # in the file, of the table's columns
    required: tuple[int, ...]  # columns of the table


@dataclass
class _Last:
    """What was found out about the last file: the next one of the version usually has the same columns."""

    columns: tuple[pa.Schema, list[str]] | None = None
    rearrangement: _Rearrangement | None = None


@dataclass(frozen=True)
class Projection:
    """Converts files of one schema version."""

    current: TableSchema
    version: TableSchema
    dictionary_typed: frozenset[str] = frozenset()
    """Columns to read as Arrow dictionaries, by their current names."""

    known_ids: frozenset[int] | None = None
    """Field ids that the table has or had; None for those of the two versions only."""

    _last: _Last = dataclass_field(default_factory=lambda: _Last(), compare=False)

    def columns(self, found: pa.Schema, path: str) -> list[str]:
        """Returns the columns of a file to read. Raises `BadInput` if it has columns that the table never had."""
        seen = self._last.columns
        if seen is not None and found.equals(seen[0], check_metadata=True):
            return seen[1]
        self._require_known(found, path)
        wanted = {field.field_id for field in self.current.iceberg.fields}
        ids = self._ids(found)
        names = [field.name for field in found if ids.get(field.name) in wanted]
        self._last.columns = (found, names)
        return names

    def dictionaries(self) -> list[str]:
        """Returns the columns to read as dictionaries, by their names in the version."""
        ids = {field.field_id for field in self.current.iceberg.fields if field.name in self.dictionary_typed}
        return [field.name for field in self.version.iceberg.fields if field.field_id in ids]

    def apply(self, rows: pa.Table, path: str) -> pa.Table:
        """``path`` is for error messages."""
        return self._rearranged(rows) or self._converted(rows, path)

    def _rearranged(self, rows: pa.Table) -> pa.Table | None:
        """Returns None unless rows like the last ones needed no conversion. Small files are read in half a millisecond,
        of which finding that out again would be a fifth.
        """
        last = self._last.rearrangement
        if last is None or not rows.schema.equals(last.found, check_metadata=True):
            return None
        columns = [rows.column(place) for place in last.places]
        if any(columns[place].null_count for place in last.required):
            return None  # the conversion says which
        return pa.Table.from_arrays(columns, schema=last.schema)

    def _converted(self, rows: pa.Table, path: str) -> pa.Table:
        wanted = self.current.arrow()
        ids = self._ids(rows.schema)
        places = {ids.get(field.name): place for place, field in enumerate(rows.schema)}
        columns, fields = [], []
        for field, arrow in zip(self.current.iceberg.fields, wanted, strict=True):
            place = places.get(field.field_id)
            try:
                column = self._column(rows, place, field, arrow)
            except CannotProject as problem:
                raise BadInput(path, f"can't be merged: column {field.name}: {problem}") from problem
            columns.append(column)
            fields.append(arrow if column.type == arrow.type else arrow.with_type(column.type))
        schema = pa.schema(fields, wanted.metadata)
        self._last.rearrangement = self._rearrangement(rows.schema, schema, places)
        return pa.table(columns, schema=schema)

    def _rearrangement(
        self, found: pa.Schema, schema: pa.Schema, places: Mapping[int | None, int]
    ) -> _Rearrangement | None:
        """Returns None if a column was converted."""
        chosen, required = [], []
        for number, (field, arrow) in enumerate(zip(self.current.iceberg.fields, self.current.arrow(), strict=True)):
            place = places.get(field.field_id)
            if place is None or not self._fits(found.field(place).type, field, arrow):
                return None
            chosen.append(place)
            if field.required:
                required.append(number)
        return _Rearrangement(found, schema, tuple(chosen), tuple(required))

    def _fits(self, kind: pa.DataType, field: NestedField, arrow: pa.Field) -> bool:
        """Whether a column of this type is the table's column as it is."""
        if field.name in self.dictionary_typed:
            return bool(pa.types.is_dictionary(kind))
        return kind == arrow.type and (field.field_type.is_primitive or _same_fields(kind, arrow.type))

    def _column(self, rows: pa.Table, place: int | None, field: NestedField, arrow: pa.Field) -> pa.ChunkedArray:
        as_dictionary = field.name in self.dictionary_typed
        if place is None:
            if field.required:
                raise CannotProject("is missing, and the table requires it")
            column = pa.chunked_array([_missing(rows.num_rows, _flat(arrow.type) if as_dictionary else arrow.type)])
            return column.dictionary_encode() if as_dictionary else column
        column = rows.column(place)
        if field.required and column.null_count:
            raise CannotProject(f"{column.null_count:,} values are null, and the table requires them")
        if self._fits(column.type, field, arrow):
            return column
        if as_dictionary:
            return _cast(column, _flat(arrow.type)).dictionary_encode()
        version = next((known for known in self.version.iceberg.fields if known.field_id == field.field_id), None)
        source = _tree(rows.schema.field(place), version)
        chunks = [_project(chunk, source, field, arrow.type) for chunk in column.chunks]
        return pa.chunked_array(chunks, arrow.type)

    def _require_known(self, found: pa.Schema, path: str) -> None:
        known = self.known_ids or frozenset(self.current.iceberg.field_ids | self.version.iceberg.field_ids)
        ids = self._ids(found)
        fields = {field.field_id: field for schema in (self.current, self.version) for field in schema.iceberg.fields}
        wanted = {field.field_id for field in self.current.iceberg.fields}
        for column in found:
            field_id = ids.get(column.name)
            if field_id in wanted:
                _require_ids(_tree(column, fields[field_id]), known, column.name, path)
            elif field_id is None or field_id not in known:
                raise _unknown(path, column.name, field_id)

    def _ids(self, found: pa.Schema) -> dict[str, int]:
        """Returns field ids by top-level name."""
        own = {field.name: _own_id(field) for field in found}
        if any(field_id is not None for field_id in own.values()):
            return {name: field_id for name, field_id in own.items() if field_id is not None}
        return {field.name: field.field_id for field in self.version.iceberg.fields}


@dataclass(frozen=True)
class _Tree:
    """A column of a file: its id, and the columns inside."""

    field_id: int | None
    inner: tuple[_Tree, ...] = ()


def _tree(found: pa.Field, version: NestedField | None) -> _Tree:
    """Uses the file's own ids; where it has none, those of its version by name or position."""
    own = _own_id(found)
    field_id = own if own is not None else (version.field_id if version is not None else None)
    known = inner_fields(version.field_type) if version is not None else ()
    inside = _inner(found.type)
    if pa.types.is_struct(found.type):
        by_name = {field.name: field for field in known}
        return _Tree(field_id, tuple(_tree(field, by_name.get(field.name)) for field in inside))
    padded = known if len(known) == len(inside) else (None,) * len(inside)
    return _Tree(field_id, tuple(_tree(field, other) for field, other in zip(inside, padded, strict=True)))


def _require_ids(tree: _Tree, known: Collection[int], name: str, path: str) -> None:
    if tree.field_id is None or tree.field_id not in known:
        raise _unknown(path, name, tree.field_id)
    for inner in tree.inner:
        _require_ids(inner, known, f"{name}, inside of it", path)


def _unknown(path: str, name: str, field_id: int | None) -> BadInput:
    which = "without a field id" if field_id is None else f"with field id {field_id}"
    return BadInput(
        path,
        f"has a column {name!r} {which}, which the table never had: its values would be lost. Insert the "
        "file with `astha insert` instead, or remove it from its table",
    )


def _project(array: pa.Array, source: _Tree, target: NestedField, wanted: pa.DataType) -> pa.Array:
    match target.field_type:
        case StructType() as kind:
            _check(array, pa.types.is_struct(array.type), wanted)
            return _project_struct(array, source, kind, wanted)
        case ListType() as kind:
            _check(array, pa.types.is_list(array.type) or pa.types.is_large_list(array.type), wanted)
            offsets, values = _rebased(array, array.values)
            inner = _project(values, source.inner[0], kind.element_field, wanted.value_type)
            make = pa.LargeListArray if pa.types.is_large_list(wanted) else pa.ListArray
            return make.from_arrays(
                offsets.cast(pa.int64() if make is pa.LargeListArray else pa.int32()), inner, wanted, mask=_nulls(array)
            )
        case MapType() as kind:
            _check(array, pa.types.is_map(array.type), wanted)
            offsets, keys = _rebased(array, array.keys)
            _, items = _rebased(array, array.items)
            return pa.MapArray.from_arrays(
                offsets,
                _project(keys, source.inner[0], kind.key_field, wanted.key_type),
                _project(items, source.inner[1], kind.value_field, wanted.item_type),
                wanted,
                mask=_nulls(array),
            )
        case _:
            return _cast(array, wanted)


def _project_struct(array: pa.Array, source: _Tree, kind: StructType, wanted: pa.DataType) -> pa.Array:
    places = {inner.field_id: place for place, inner in enumerate(source.inner)}
    columns, fields = [], []
    for target in kind.fields:
        field = wanted.field(target.name)
        place = places.get(target.field_id)
        if place is not None:
            columns.append(_project(array.field(place), source.inner[place], target, field.type))
        elif target.required:
            raise CannotProject(f"field {target.name} is missing, and the table requires it")
        else:
            columns.append(_missing(len(array), field.type))
        fields.append(field)
    return pa.StructArray.from_arrays(columns, fields=fields, mask=_nulls(array))


def _missing(rows: int, kind: pa.DataType) -> pa.Array:
    """Returns nulls. Required fields inside of them get values, because Parquet's writer checks those."""
    if not pa.types.is_struct(kind):
        return pa.nulls(rows, kind)
    mask = pa.repeat(pa.scalar(True), rows)
    return pa.StructArray.from_arrays([_filling(rows, field) for field in kind], fields=list(kind), mask=mask)


def _filling(rows: int, field: pa.Field) -> pa.Array:
    kind = field.type
    if field.nullable:
        return _missing(rows, kind)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_filling(rows, inner) for inner in kind], fields=list(kind))
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _filling(rows, pa.field(field.name, kind.storage_type, False)))
    # Zeros are a valid number, time, empty text or empty list.
    blank = pa.nulls(rows, kind)
    content = [None, *blank.buffers()[1 : kind.num_buffers]]
    return pa.Array.from_buffers(kind, rows, content, 0, children=[blank.values] if _inner(kind) else None)


def _cast(array: pa.Array | pa.ChunkedArray, wanted: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if array.type == wanted:
        return array
    try:
        return array.cast(wanted, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise CannotProject(f"{array.type} can't become the table's {wanted}: {error}") from error


def _check(array: pa.Array, fits: bool, wanted: pa.DataType) -> None:
    if not fits:
        raise CannotProject(f"{array.type} can't become the table's {wanted}")


def _rebased(array: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Returns offsets from 0, and the values that they refer to."""
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    start = pa.scalar(first, offsets.type)
    return pc.subtract(offsets, start), values.slice(first, last - first)


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _flat(kind: pa.DataType) -> pa.DataType:
    """Returns the type with 32-bit offsets, as Arrow's dictionaries have."""
    return pa.binary() if pa.types.is_large_binary(kind) else pa.string()


def _own_id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(_FIELD_ID)
    return None if found is None else int(found)


def _inner(kind: pa.DataType) -> Collection[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field]
    return []


def _same_fields(one: pa.DataType, other: pa.DataType) -> bool:
    """Compares names, ids and nullability at every depth, which equality of types does not."""
    ours: Iterable[pa.Field] = _inner(one)
    return all(
        mine.name == theirs.name
        and mine.type == theirs.type
        and mine.nullable == theirs.nullable
        and _own_id(mine) == _own_id(theirs)
        and _same_fields(mine.type, theirs.type)
        for mine, theirs in zip(ours, _inner(other), strict=True)
    )
