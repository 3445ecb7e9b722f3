"""The metadata of an Iceberg table, as its JSON document has it.

Snapshots keep the JSON that their engine sent: parsing and writing a table with a thousand of them takes a few
milliseconds, and fields that are unknown here survive. PyIceberg's models copy and validate all of them at each change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

import msgspec

from components.lib.lake.engine_commits.errors import InvalidCommit

Document: TypeAlias = dict[str, Any]
"""A schema, partition spec, sort order or statistics file in Iceberg's JSON form. Never changed in place."""

MAIN: Final = "main"
FIRST_PARTITION_ID: Final = 1000
UNSORTED: Final[Document] = {"order-id": 0, "fields": []}
ROW_LINEAGE_VERSION: Final = 3
HIGHEST_VERSION: Final = 3


class Snapshot(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """The fields of a snapshot that the catalog reads."""

    snapshot_id: int
    timestamp_ms: int
    manifest_list: str | None = None
    parent_snapshot_id: int | None = None
    sequence_number: int | None = None
    schema_id: int | None = None
    first_row_id: int | None = None
    added_rows: int | None = None


class StoredSnapshot(msgspec.Struct, frozen=True, gc=False):
    """A snapshot with the JSON that its engine sent."""

    fields: Snapshot
    json: bytes

    @classmethod
    def parse(cls, json: bytes | msgspec.Raw) -> StoredSnapshot:
        content = bytes(json)
        return cls(_snapshot.decode(content), content)

    @property
    def snapshot_id(self) -> int:
        return self.fields.snapshot_id

    def summary(self) -> dict[str, str]:
        """Decodes the summary; raises `msgspec.ValidationError` if it has other values than texts."""
        return _summary.decode(self.json).summary or {}


class _WithSummary(msgspec.Struct, gc=False):
    summary: dict[str, str] | None = None


class Reference(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True, gc=False):
    """A branch or tag."""

    snapshot_id: int
    type: Literal["branch", "tag"]
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None


class SnapshotLogEntry(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    timestamp_ms: int
    snapshot_id: int


class MetadataLogEntry(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    timestamp_ms: int
    metadata_file: str


class IcebergMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a table's metadata. Never changed: `MetadataBuilder` makes the next version."""

    format_version: int
    table_uuid: str
    location: str
    last_sequence_number: int = 0
    last_updated_ms: int
    last_column_id: int
    current_schema_id: int
    schemas: Sequence[Document]
    default_spec_id: int
    partition_specs: Sequence[Document]
    last_partition_id: int
    default_sort_order_id: int
    sort_orders: Sequence[Document]
    properties: Mapping[str, str] = {}
    current_snapshot_id: int | None = None
    next_row_id: int = 0
    encryption_keys: Sequence[Document] = ()
    refs: Mapping[str, Reference] = {}
    snapshots: Mapping[int, StoredSnapshot] = {}
    statistics: Sequence[Document] = ()
    partition_statistics: Sequence[Document] = ()
    snapshot_log: Sequence[SnapshotLogEntry] = ()
    metadata_log: Sequence[MetadataLogEntry] = ()
    unknown: Mapping[str, msgspec.Raw] = {}
    """Fields of the document that no known format version has."""

    @classmethod
    def parse(cls, json: bytes) -> IcebergMetadata:
        """Parses a metadata file of format version 1, 2 or 3. Raises `InvalidCommit` if it is none."""
        try:
            found = _file.decode(json)
            known = set(_MetadataFile.__struct_encode_fields__)
            unknown = {name: value for name, value in _fields.decode(json).items() if name not in known}
            return _from_file(found, unknown)
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError) as error:
            raise InvalidCommit(f"not the metadata of an Iceberg table: {error}") from error

    def encode(self) -> bytes:
        """Returns the JSON document, with the fields that Iceberg's own library writes."""
        content: dict[str, Any] = {
            "format-version": self.format_version,
            "table-uuid": self.table_uuid,
            "location": self.location,
        }
        if self.format_version > 1:
            content["last-sequence-number"] = self.last_sequence_number
        content["last-updated-ms"] = self.last_updated_ms
        content["last-column-id"] = self.last_column_id
        if self.format_version == 1:  # older readers know only these
            content["schema"] = self.schema
            content["partition-spec"] = self.spec["fields"]
        content |= {
            "current-schema-id": self.current_schema_id,
            "schemas": self.schemas,
            "default-spec-id": self.default_spec_id,
            "partition-specs": self.partition_specs,
            "last-partition-id": self.last_partition_id,
            "default-sort-order-id": self.default_sort_order_id,
            "sort-orders": self.sort_orders,
            "properties": self.properties,
            "current-snapshot-id": self.current_snapshot_id,
        }
        if self.format_version >= ROW_LINEAGE_VERSION:
            content["next-row-id"] = self.next_row_id
        elif self.current_snapshot_id is None:
            content["current-snapshot-id"] = -1  # null is allowed from version 3 on
        if self.encryption_keys:
            content["encryption-keys"] = self.encryption_keys
        content |= {
            "refs": self.refs,
            "snapshots": msgspec.Raw(b"[%b]" % b",".join(map(_json_of, self.snapshots.values()))),
            "statistics": self.statistics,
            "partition-statistics": self.partition_statistics,
            "snapshot-log": self.snapshot_log,
            "metadata-log": self.metadata_log,
            **self.unknown,
        }
        return msgspec.json.encode(content)

    @property
    def schema(self) -> Document:
        return by_id(self.schemas, "schema-id", self.current_schema_id)

    @property
    def spec(self) -> Document:
        return by_id(self.partition_specs, "spec-id", self.default_spec_id)

    @property
    def sort_order(self) -> Document:
        return by_id(self.sort_orders, "order-id", self.default_sort_order_id)

    @property
    def current_snapshot(self) -> StoredSnapshot | None:
        return None if self.current_snapshot_id is None else self.snapshots.get(self.current_snapshot_id)


class _MetadataFile(msgspec.Struct, rename="kebab", kw_only=True):
    """The document as it is read. Fields that only later writers set are optional."""

    format_version: int
    table_uuid: str
    location: str
    last_sequence_number: int = 0
    last_updated_ms: int
    last_column_id: int
    schema: Document | None = None
    current_schema_id: int | None = None
    schemas: list[Document] = []
    partition_spec: list[Document] | None = None
    default_spec_id: int = 0
    partition_specs: list[Document] = []
    last_partition_id: int | None = None
    default_sort_order_id: int = 0
    sort_orders: list[Document] = []
    properties: dict[str, str] | None = None
    current_snapshot_id: int | None = None
    next_row_id: int = 0
    encryption_keys: list[Document] | None = None
    refs: dict[str, Reference] | None = None
    snapshots: list[msgspec.Raw] | None = None
    statistics: list[Document] | None = None
    partition_statistics: list[Document] | None = None
    snapshot_log: list[SnapshotLogEntry] | None = None
    metadata_log: list[MetadataLogEntry] | None = None


_json_of = attrgetter("json")
_file = msgspec.json.Decoder(_MetadataFile)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_snapshot = msgspec.json.Decoder(Snapshot)
_summary = msgspec.json.Decoder(_WithSummary)


def _from_file(found: _MetadataFile, unknown: Mapping[str, msgspec.Raw]) -> IcebergMetadata:
    if not 1 <= found.format_version <= HIGHEST_VERSION:
        raise InvalidCommit(f"format version {found.format_version}: versions 1 to {HIGHEST_VERSION} are supported")
    schemas, specs = _schemas(found), _specs(found)
    current = None if found.current_snapshot_id == -1 else found.current_snapshot_id
    refs = found.refs or {}
    if current is not None and MAIN not in refs:
        refs = {**refs, MAIN: Reference(current, "branch")}
    partition_ids = [field["field-id"] for spec in specs for field in spec["fields"]]
    stored = [StoredSnapshot.parse(json) for json in found.snapshots or ()]
    return IcebergMetadata(
        format_version=found.format_version,
        table_uuid=found.table_uuid,
        location=found.location,
        last_sequence_number=found.last_sequence_number,
        last_updated_ms=found.last_updated_ms,
        last_column_id=found.last_column_id,
        current_schema_id=schemas[0]["schema-id"] if found.current_schema_id is None else found.current_schema_id,
        schemas=schemas,
        default_spec_id=found.default_spec_id,
        partition_specs=specs,
        last_partition_id=found.last_partition_id or max(partition_ids, default=FIRST_PARTITION_ID - 1),
        default_sort_order_id=found.default_sort_order_id,
        sort_orders=found.sort_orders or [UNSORTED],
        properties=found.properties or {},
        current_snapshot_id=current,
        next_row_id=found.next_row_id,
        encryption_keys=found.encryption_keys or (),
        refs=refs,
        snapshots={snapshot.fields.snapshot_id: snapshot for snapshot in stored},
        statistics=found.statistics or (),
        partition_statistics=found.partition_statistics or (),
        snapshot_log=tuple(found.snapshot_log or ()),
        metadata_log=tuple(found.metadata_log or ()),
        unknown=unknown,
    )


def _schemas(found: _MetadataFile) -> list[Document]:
    if found.schemas:
        return found.schemas
    if found.schema is None:
        raise InvalidCommit("the metadata has no schema")
    return [{**found.schema, "schema-id": found.schema.get("schema-id", 0)}]


def _specs(found: _MetadataFile) -> list[Document]:
    """Early writers of version 1 gave partition fields no ids: those are numbered by their place."""
    specs = found.partition_specs or [{"spec-id": found.default_spec_id, "fields": found.partition_spec or []}]
    return [
        {
            **spec,
            "fields": [
                {**field, "field-id": field.get("field-id", FIRST_PARTITION_ID + place)}
                for place, field in enumerate(spec["fields"])
            ],
        }
        for spec in specs
    ]


def by_id(documents: Sequence[Document], key: str, wanted: int) -> Document:
    for document in documents:
        if document[key] == wanted:
            return document
    raise InvalidCommit(f"the table has no {key} {wanted}")
