"""Applies the updates of a commit to a table's metadata, with the semantics of Iceberg's own server.

The cost of a commit depends on its updates and not on the size of the metadata, except for shallow copies. What
Iceberg's library refuses to load (logs out of order, references without snapshot) is refused before it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec

from components.lib.lake.engine_commits.errors import CommitConflict, InvalidCommit
from components.lib.lake.engine_commits.iceberg_metadata import (
    FIRST_PARTITION_ID,
    HIGHEST_VERSION,
    MAIN,
    ROW_LINEAGE_VERSION,
    UNSORTED,
    Document,
    IcebergMetadata,
    MetadataLogEntry,
    Reference,
    SnapshotLogEntry,
    StoredSnapshot,
)
from components.lib.lake.engine_commits.schema_documents import (
    check_schema,
    check_sources,
    highest_field_id,
    numbered_fields,
    order_key,
    reuse_or_number,
    same_schema,
    spec_key,
)
from components.lib.lake.engine_commits.updates import (
    AddEncryptionKey,
    AddSchema,
    AddSnapshot,
    AddSortOrder,
    AddSpec,
    AssignUUID,
    RemoveEncryptionKey,
    RemovePartitionSpecs,
    RemovePartitionStatistics,
    RemoveProperties,
    RemoveSchemas,
    RemoveSnapshotRef,
    RemoveSnapshots,
    RemoveStatistics,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    SetPartitionStatistics,
    SetProperties,
    SetSnapshotRef,
    SetStatistics,
    Update,
    UpgradeFormatVersion,
)

DEFAULT_VERSION: Final = 2
PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
_PREVIOUS_VERSIONS_DEFAULT = 100
STAMP_PREFIX = "astha."
_RESERVED = frozenset(
    {
        "format-version",
        "uuid",
        "snapshot-count",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    }
)
"""Iceberg uses these names in requests; they are never stored."""

_LAST_ADDED: Final = -1
_TOLERANCE_MS = 60_000
"""How far clocks of engines may differ: Iceberg's library refuses to load logs that are further out of order."""


class MetadataBuilder:
    """Builds one version from another, or the first one of a table (`base` is None).

    Every method raises `InvalidCommit` if the update can't be applied, `CommitConflict` if it is out of date.
    """

    def __init__(self, base: IcebergMetadata | None, *, now_ms: int, format_version: int = DEFAULT_VERSION) -> None:
        self._base = base
        self._now_ms = now_ms if base is None else max(now_ms, base.last_updated_ms)
        self._changed = base is None
        if base is None:
            base = _nothing(format_version)
        self._version = base.format_version
        self._uuid = base.table_uuid
        self.location = base.location
        self._sequence = base.last_sequence_number
        self._last_column = base.last_column_id
        self._current_schema = base.current_schema_id
        self._schemas = list(base.schemas)
        self._default_spec = base.default_spec_id
        self._specs = list(base.partition_specs)
        self._last_partition = base.last_partition_id
        self._default_order = base.default_sort_order_id
        self._orders = list(base.sort_orders)
        self.properties = dict(base.properties)
        self._current = base.current_snapshot_id
        self._next_row = base.next_row_id
        self._keys = list(base.encryption_keys)
        self._refs = dict(base.refs)
        self._snapshots = dict(base.snapshots)
        self._statistics = list(base.statistics)
        self._partition_statistics = list(base.partition_statistics)
        self._log = list(base.snapshot_log)
        self._metadata_log = base.metadata_log
        self._unknown = base.unknown
        self._added: set[int] = set()
        self._was_main: set[int] = set()
        """Snapshots that this commit added and made current, the last one included."""
        self._removed_snapshots = False
        self._last_schema: int | None = None
        self._last_spec: int | None = None
        self._last_order: int | None = None

    def apply(self, update: Update) -> None:
        _APPLY[type(update)](self, update)

    def build(self, previous_location: str | None) -> IcebergMetadata:
        """Returns the new version, or the base itself if nothing has changed."""
        if not self._changed and self._base is not None:
            return self._base
        if not self.location:
            raise InvalidCommit("the table has no location")
        self._check_current()
        log = self._final_log()
        metadata_log = list(self._metadata_log)
        if self._base is not None and previous_location is not None:
            keep = max(1, _number(self.properties, PREVIOUS_VERSIONS, _PREVIOUS_VERSIONS_DEFAULT))
            entry = MetadataLogEntry(self._base.last_updated_ms, previous_location)
            metadata_log = [*metadata_log, entry][-keep:]
        return IcebergMetadata(
            format_version=self._version,
            table_uuid=self._uuid,
            location=self.location,
            last_sequence_number=self._sequence,
            last_updated_ms=max(self._now_ms, log[-1].timestamp_ms) if log else self._now_ms,
            last_column_id=self._last_column,
            current_schema_id=self._current_schema,
            schemas=self._schemas,
            default_spec_id=self._default_spec,
            partition_specs=self._specs,
            last_partition_id=self._last_partition,
            default_sort_order_id=self._default_order,
            sort_orders=self._orders,
            properties=self.properties,
            current_snapshot_id=self._current,
            next_row_id=self._next_row,
            encryption_keys=self._keys,
            refs=self._refs,
            snapshots=self._snapshots,
            statistics=self._statistics,
            partition_statistics=self._partition_statistics,
            snapshot_log=log,
            metadata_log=metadata_log,
            unknown=self._unknown,
        )

    # -- the table itself --------------------------------------------------------------------------------

    def assign_uuid(self, update: AssignUUID) -> None:
        try:
            wanted = str(UUID(update.uuid))
        except ValueError as error:
            raise InvalidCommit(f"{update.uuid!r} is not a UUID") from error
        if wanted != self._uuid:
            if self._base is not None:
                raise InvalidCommit(f"Cannot reassign the UUID of a table: {self._uuid} to {wanted}")
            self._uuid, self._changed = wanted, True

    def upgrade(self, update: UpgradeFormatVersion) -> None:
        wanted = update.format_version
        if wanted > HIGHEST_VERSION:
            raise InvalidCommit(
                f"Cannot upgrade table to unsupported format version: v{wanted} (supported: v{HIGHEST_VERSION})"
            )
        if wanted < self._version:
            raise InvalidCommit(f"Cannot downgrade v{self._version} table to v{wanted}")
        if wanted != self._version:
            self._version, self._changed = wanted, True

    def set_location(self, update: SetLocation) -> None:
        if update.location != self.location:
            self.location, self._changed = update.location, True

    def set_properties(self, update: SetProperties) -> None:
        """Ignores what only this server may set, and names that Iceberg uses only in requests."""
        given = update.updates if update.updates is not None else update.updated
        wanted = settable(given or {})
        if wanted:
            self.properties.update(wanted)
            self._changed = True

    def remove_properties(self, update: RemoveProperties) -> None:
        given = update.removals if update.removals is not None else update.removed
        for name in settable(dict.fromkeys(given or (), "")):
            self.properties.pop(name, None)
            self._changed = True

    def add_key(self, update: AddEncryptionKey) -> None:
        if all(key.get("key-id") != update.encryption_key.get("key-id") for key in self._keys):
            self._keys.append(update.encryption_key)
            self._changed = True

    def remove_key(self, update: RemoveEncryptionKey) -> None:
        self._keys = self._without(self._keys, "key-id", [update.key_id])

    # -- schemas, partition specs, sort orders -----------------------------------------------------------

    def add_schema(self, update: AddSchema) -> None:
        check_schema(update.schema, self._version)
        number, known = reuse_or_number(
            self._schemas, "schema-id", self._current_schema, lambda schema: same_schema(schema, update.schema)
        )
        if not known:
            self._schemas.append({**update.schema, "type": "struct", "schema-id": number})
            self._last_column = max(self._last_column, highest_field_id(update.schema))
            self._changed = True
        self._last_schema = number

    def set_current_schema(self, update: SetCurrentSchema) -> None:
        wanted = _wanted(update.schema_id, self._last_schema, "schema")
        if all(schema["schema-id"] != wanted for schema in self._schemas):
            raise InvalidCommit(f"Cannot set current schema to unknown schema: {wanted}")
        if wanted != self._current_schema:
            self._current_schema, self._changed = wanted, True

    def remove_schemas(self, update: RemoveSchemas) -> None:
        if self._current_schema in update.schema_ids:
            raise InvalidCommit("Cannot remove the current schema")
        self._schemas = self._without(self._schemas, "schema-id", update.schema_ids)

    def add_spec(self, update: AddSpec) -> None:
        number, known = reuse_or_number(self._specs, "spec-id", 0, lambda spec: spec_key(spec) == spec_key(update.spec))
        self._last_spec = number
        if known:
            return
        fields = numbered_fields(update.spec)
        check_sources("partition", fields, self._schema())
        if self._version == 1 and any(
            field["field-id"] != FIRST_PARTITION_ID + place for place, field in enumerate(fields)
        ):
            raise InvalidCommit(f"Spec does not use sequential IDs that are required in v1: {fields}")
        self._specs.append({"spec-id": number, "fields": fields})
        self._last_partition = max(self._last_partition, *(field["field-id"] for field in fields), 0)
        self._changed = True

    def set_default_spec(self, update: SetDefaultSpec) -> None:
        wanted = _wanted(update.spec_id, self._last_spec, "spec")
        if all(spec["spec-id"] != wanted for spec in self._specs):
            raise InvalidCommit(f"Cannot set default partition spec to unknown spec: {wanted}")
        if wanted != self._default_spec:
            self._default_spec, self._changed = wanted, True

    def remove_specs(self, update: RemovePartitionSpecs) -> None:
        if self._default_spec in update.spec_ids:
            raise InvalidCommit("Cannot remove the default partition spec")
        self._specs = self._without(self._specs, "spec-id", update.spec_ids)

    def add_order(self, update: AddSortOrder) -> None:
        wanted = order_key(update.sort_order)
        number, known = reuse_or_number(
            self._orders, "order-id", 1 if wanted else 0, lambda order: order_key(order) == wanted
        )
        self._last_order = number if wanted else 0
        if known:
            return
        fields = update.sort_order["fields"]
        check_sources("sort", fields, self._schema())
        self._orders.append({"order-id": number, "fields": fields} if wanted else UNSORTED)
        self._changed = True

    def set_default_order(self, update: SetDefaultSortOrder) -> None:
        wanted = _wanted(update.sort_order_id, self._last_order, "sort order")
        if all(order["order-id"] != wanted for order in self._orders):
            raise InvalidCommit(f"Cannot set default sort order to unknown sort order: {wanted}")
        if wanted != self._default_order:
            self._default_order, self._changed = wanted, True

    # -- snapshots and references ------------------------------------------------------------------------

    def add_snapshot(self, update: AddSnapshot) -> None:
        try:
            stored = StoredSnapshot.parse(update.snapshot)
            stored.summary()
        except msgspec.ValidationError as error:
            raise InvalidCommit(f"not a snapshot: {error}") from error
        found = stored.fields
        if found.snapshot_id in self._snapshots:
            raise InvalidCommit(f"Snapshot already exists for id: {found.snapshot_id}")
        if found.snapshot_id <= 0:
            raise InvalidCommit(f"a snapshot's id is positive, and not {found.snapshot_id}")
        if not (self._schemas and self._specs and self._orders):
            raise InvalidCommit("Attempting to add a snapshot before a schema, partition spec or sort order is added")
        sequence = found.sequence_number or 0
        if self._version > 1 and sequence <= self._sequence and found.parent_snapshot_id is not None:
            raise CommitConflict(
                f"Validation failed, please retry: Cannot add snapshot with sequence number {sequence} older than last "
                f"sequence number {self._sequence}"
            )
        if self._version >= ROW_LINEAGE_VERSION:
            self._add_rows(found.first_row_id, found.added_rows)
        self._sequence = max(self._sequence, sequence)
        self._snapshots[found.snapshot_id] = stored
        self._added.add(found.snapshot_id)
        self._changed = True

    def _add_rows(self, first: int | None, added: int | None) -> None:
        if first is None or added is None or added < 0:
            raise InvalidCommit("Cannot add a snapshot: first-row-id or added-rows is null")
        if first < self._next_row:
            raise CommitConflict(
                "Validation failed, please retry: Cannot add a snapshot, first-row-id is behind table next-row-id: "
                f"{first} < {self._next_row}"
            )
        self._next_row += added

    def set_ref(self, update: SetSnapshotRef) -> None:
        wanted = Reference(
            update.snapshot_id,
            update.type,
            update.min_snapshots_to_keep,
            update.max_snapshot_age_ms,
            update.max_ref_age_ms,
        )
        name = update.ref_name
        if self._refs.get(name) == wanted:
            return
        stored = self._snapshots.get(wanted.snapshot_id)
        if stored is None:
            raise InvalidCommit(f"Cannot set {name} to unknown snapshot: {wanted.snapshot_id}")
        if name == MAIN:
            if wanted.type != "branch":
                raise InvalidCommit(f"Cannot set {MAIN} to a tag, it must be a branch")
            is_new = wanted.snapshot_id in self._added
            self._current = wanted.snapshot_id
            changed_ms = stored.fields.timestamp_ms if is_new else self._now_ms
            self._log.append(SnapshotLogEntry(changed_ms, wanted.snapshot_id))
            if is_new:
                self._was_main.add(wanted.snapshot_id)
        self._refs[name] = wanted
        self._changed = True

    def remove_ref(self, update: RemoveSnapshotRef) -> None:
        if update.ref_name == MAIN:
            self._current = None
        if self._refs.pop(update.ref_name, None) is not None:
            self._changed = True

    def remove_snapshots(self, update: RemoveSnapshots) -> None:
        gone = [number for number in update.snapshot_ids if number in self._snapshots]
        if not gone:
            return
        for number in gone:
            del self._snapshots[number]
        self._changed = self._removed_snapshots = True
        self._statistics = self._without(self._statistics, "snapshot-id", gone)
        self._partition_statistics = self._without(self._partition_statistics, "snapshot-id", gone)
        for name in [name for name, ref in self._refs.items() if ref.snapshot_id not in self._snapshots]:
            self.remove_ref(RemoveSnapshotRef(name))

    def set_statistics(self, update: SetStatistics) -> None:
        self._statistics = _replaced(self._statistics, update.statistics)
        self._changed = True

    def remove_statistics(self, update: RemoveStatistics) -> None:
        self._statistics = self._without(self._statistics, "snapshot-id", [update.snapshot_id])

    def set_partition_statistics(self, update: SetPartitionStatistics) -> None:
        self._partition_statistics = _replaced(self._partition_statistics, update.partition_statistics)
        self._changed = True

    def remove_partition_statistics(self, update: RemovePartitionStatistics) -> None:
        self._partition_statistics = self._without(self._partition_statistics, "snapshot-id", [update.snapshot_id])

    # -- checks ------------------------------------------------------------------------------------------

    def _schema(self) -> Document:
        found = next((schema for schema in self._schemas if schema["schema-id"] == self._current_schema), None)
        if found is None:
            raise InvalidCommit("the table has no current schema yet: add-schema and set-current-schema come first")
        return found

    def _check_current(self) -> None:
        """Checks that the default spec and sort order fit the current schema."""
        schema = self._schema()
        spec = next((spec for spec in self._specs if spec["spec-id"] == self._default_spec), None)
        order = next((order for order in self._orders if order["order-id"] == self._default_order), None)
        if spec is None or order is None:
            raise InvalidCommit("the table has no partition spec or sort order: an empty one is added, too")
        base = self._base
        if base is None or (schema, spec, order) != (base.schema, base.spec, base.sort_order):
            check_sources("partition", spec["fields"], schema)
            check_sources("sort", order["fields"], schema)

    def _final_log(self) -> Sequence[SnapshotLogEntry]:
        """Returns the log without snapshots that never were current after a commit.

        If a snapshot was removed, the history before it goes, too: otherwise its successor would seem to have been
        current in its time.
        """
        intermediate = self._was_main - {self._current}
        log = self._log
        if intermediate or self._removed_snapshots:
            kept: list[SnapshotLogEntry] = []
            for entry in log:
                if entry.snapshot_id not in self._snapshots:
                    kept.clear()
                elif entry.snapshot_id not in intermediate:
                    kept.append(entry)
            log = kept
            if self._current is not None and (not log or log[-1].snapshot_id != self._current):
                raise InvalidCommit("Cannot set invalid snapshot log: latest entry is not the current snapshot")
            unchecked = log
        else:
            unchecked = log[max(0, (0 if self._base is None else len(self._base.snapshot_log)) - 1) :]
        for before, after in pairwise(unchecked):
            if after.timestamp_ms < before.timestamp_ms - _TOLERANCE_MS:
                raise InvalidCommit(
                    f"snapshot {after.snapshot_id} has the time {after.timestamp_ms}, more than a minute before its "
                    f"predecessor's {before.timestamp_ms}: check the clock of the engine's machine"
                )
        if log and log[-1].timestamp_ms > self._now_ms + _TOLERANCE_MS:
            raise InvalidCommit(
                f"snapshot {log[-1].snapshot_id} has the time {log[-1].timestamp_ms}, more than a minute after the "
                f"catalog's {self._now_ms}: check the clocks of both machines"
            )
        return log

    def _without(self, documents: list[Document], key: str, gone: Collection[Any]) -> list[Document]:
        kept = [document for document in documents if document.get(key) not in gone]
        self._changed = self._changed or len(kept) < len(documents)
        return kept


_APPLY: dict[type, Callable[[MetadataBuilder, Any], None]] = {
    AssignUUID: MetadataBuilder.assign_uuid,
    UpgradeFormatVersion: MetadataBuilder.upgrade,
    AddSchema: MetadataBuilder.add_schema,
    SetCurrentSchema: MetadataBuilder.set_current_schema,
    AddSpec: MetadataBuilder.add_spec,
    SetDefaultSpec: MetadataBuilder.set_default_spec,
    AddSortOrder: MetadataBuilder.add_order,
    SetDefaultSortOrder: MetadataBuilder.set_default_order,
    AddSnapshot: MetadataBuilder.add_snapshot,
    SetSnapshotRef: MetadataBuilder.set_ref,
    RemoveSnapshots: MetadataBuilder.remove_snapshots,
    RemoveSnapshotRef: MetadataBuilder.remove_ref,
    SetLocation: MetadataBuilder.set_location,
    SetProperties: MetadataBuilder.set_properties,
    RemoveProperties: MetadataBuilder.remove_properties,
    SetStatistics: MetadataBuilder.set_statistics,
    RemoveStatistics: MetadataBuilder.remove_statistics,
    SetPartitionStatistics: MetadataBuilder.set_partition_statistics,
    RemovePartitionStatistics: MetadataBuilder.remove_partition_statistics,
    RemovePartitionSpecs: MetadataBuilder.remove_specs,
    RemoveSchemas: MetadataBuilder.remove_schemas,
    AddEncryptionKey: MetadataBuilder.add_key,
    RemoveEncryptionKey: MetadataBuilder.remove_key,
}


def settable(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties that a client may set or remove."""
    return {
        name: value for name, value in properties.items() if name not in _RESERVED and not name.startswith(STAMP_PREFIX)
    }


def _nothing(format_version: int) -> IcebergMetadata:
    if not 1 <= format_version <= HIGHEST_VERSION:
        raise InvalidCommit(f"Unsupported format version: v{format_version} (supported: v{HIGHEST_VERSION})")
    return IcebergMetadata(
        format_version=format_version,
        table_uuid=str(uuid4()),
        location="",
        last_updated_ms=0,
        last_column_id=0,
        current_schema_id=0,
        schemas=(),
        default_spec_id=0,
        partition_specs=(),
        last_partition_id=FIRST_PARTITION_ID - 1,
        default_sort_order_id=0,
        sort_orders=(),
    )


def _wanted(number: int, last_added: int | None, what: str) -> int:
    if number != _LAST_ADDED:
        return number
    if last_added is None:
        raise InvalidCommit(f"Cannot set last added {what}: no {what} has been added")
    return last_added


def _replaced(documents: list[Document], new: Document) -> list[Document]:
    """Replaces the file of the same snapshot."""
    number = new.get("snapshot-id")
    if not isinstance(number, int):
        raise InvalidCommit("a statistics file needs a snapshot-id")
    return [*(document for document in documents if document.get("snapshot-id") != number), new]


def _number(properties: dict[str, str], name: str, default: int) -> int:
    try:
        return int(properties.get(name, default))
    except ValueError as error:
        raise InvalidCommit(f"{name} = {properties[name]!r} is not a number") from error
