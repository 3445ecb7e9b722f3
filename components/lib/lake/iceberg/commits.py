"""Builds one catalog commit: snapshots, schema, stamp, tags and expiration that happen together or not at all.

Uses PyIceberg's manifests and table updates instead of its snapshot producers: those copy all metadata a dozen times
per commit, add files under the current partition spec only, and have no `replace` operation, which streaming readers
ignore.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import Record

from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg.data_files import DataFiles
from components.lib.lake.iceberg.errors import ForeignCommit, TableUnavailable
from components.lib.lake.iceberg.manifest_lists import DroppedManifests, KnownManifests
from components.lib.lake.iceberg.manifests import (
    SnapshotManifestWriter,
    is_live,
    may_contain,
    merge_groups,
    most_files,
)
from components.lib.lake.iceberg.retention import Retention, unreferenced_files
from components.lib.lake.iceberg.schema_updates import evolution, find_spec, partition_kinds, schema_of
from components.lib.lake.iceberg.snapshot_summary import summary_of
from components.lib.lake.iceberg.staged_files import StagedFiles
from components.lib.lake.iceberg.stamp import POSITION, SCHEMA_ID, STOPPED, Stamp
from components.lib.lake.partitioning.partition_values import Partitioning, PartitionProblem
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.table_places import own_files
from registry.models import TableFile
from registry.position import Position


class SnapshotChange(msgspec.Struct):
    """The change that one snapshot makes. `replaces`: added and removed files contain the same rows.

    `deletes_removed` are paths of delete files. All others stay: they apply to the files that they applied to before,
    because a data file keeps its sequence number until it is removed. `deletes_added` are position deletes; they apply
    to all files that they name, those of the same snapshot included.
    """

    added: list[TableFile] = []
    removed: list[LiveFile] = []
    replaces: bool = False
    deletes_removed: list[str] = []
    deletes_added: list[DataFile] = []

    @property
    def operation(self) -> Operation:
        return self.operation_with(staged=False)

    def operation_with(self, *, staged: bool) -> Operation:
        """Returns the operation of a snapshot that may also add ``staged`` files."""
        if self.replaces:
            return Operation.REPLACE
        if self.added or staged:
            return Operation.OVERWRITE if self.removed else Operation.APPEND
        return Operation.DELETE if self.removed else Operation.OVERWRITE


class FilesMissing(Exception):
    """Files to be removed are not in the snapshot: Iceberg must be compared with the registry."""


class TableCommit:
    """Everything is relative to `table` as it was loaded; the catalog refuses the commit if it is out of date.

    `known` is what earlier commits of this process know about the table's manifests; `remember` adds to it.
    """

    def __init__(self, table: Table, known: KnownManifests | None = None) -> None:
        self.table = table
        self.stamp = Stamp.read(table.metadata)
        self.updates: list[TableUpdate] = []
        self.unreferenced: list[str] = []
        """Metadata files that are unreferenced after the commit."""
        current = table.metadata.current_snapshot()
        self._base = self._head = current
        self._known_manifests = known = known or KnownManifests()
        self._manifests = known.of(None if current is None else current.snapshot_id)
        self._dropped: dict[int, DroppedManifests] = {}
        self._digest = self.stamp.digest.copy()
        self._schema = table.metadata.schema()
        self._specs = dict(table.metadata.specs())
        self._known: dict[int, DataFiles] = {}
        self._writers: list[SnapshotManifestWriter] = []
        self._staged: StagedFiles | None = None

    @property
    def digest(self) -> Digest:
        """The digest of the live files after the commit."""
        return self._digest

    @property
    def snapshots(self) -> int:
        """The number of new snapshots so far."""
        return len(self._writers)

    def remember(self) -> None:
        """Call it after the commit: the next one need not read the manifest list."""
        if self._head is not None and self._manifests is not None:
            retained = (snapshot.snapshot_id for snapshot in self.table.metadata.snapshots)
            self._known_manifests.committed(self._head.snapshot_id, self._manifests, self._dropped, retained)

    def require_own(self) -> None:
        """Raises `ForeignCommit` unless the current snapshot and schema are those of the stamp."""
        found = None if self._base is None else self._base.snapshot_id
        known = self.table.metadata.properties.get(SCHEMA_ID)
        if known != str(self.table.metadata.current_schema_id):
            raise ForeignCommit(
                f"{'.'.join(self.table.name())}: its schema was changed by another engine. Add a version with that "
                "change to the registry's table, or undo it with `astha iceberg revert`"
            )
        if found != self.stamp.snapshot:
            raise ForeignCommit(
                f"{'.'.join(self.table.name())}: snapshot {found} is not Astha's, whose last one is "
                f"{self.stamp.snapshot}: another engine has committed. `astha iceberg adopt` takes its change over "
                "into the registry, `astha iceberg revert` undoes it"
            )

    def evolve(self, schema: TableSchema) -> None:
        """Sets the current schema, partition spec and sort order. Raises `SchemaProblem` if that is impossible."""
        found = evolution(self.table.metadata, schema)
        self.updates += found.updates
        self._schema, self._specs = found.schema, found.specs

    def stage(self, schemas: Mapping[int, TableSchema], files: int) -> StagedFiles:
        """Call it after `evolve`. Files of these schema versions can be added to the result, about ``files`` in all;
        then another commit takes it for its snapshot.
        """
        specs = {version: self._spec_of(schema).spec_id for version, schema in schemas.items()}
        snapshot_id, most = self.table.metadata.new_snapshot_id(), most_files(files)
        writer = SnapshotManifestWriter(self.table, self._schema, snapshot_id, 0, most)
        return StagedFiles(writer, lambda added: self._added(writer, added, schemas), specs)

    def add_snapshot(
        self,
        change: SnapshotChange,
        schemas: Mapping[int, TableSchema],
        position: Position | None = None,
        staged: StagedFiles | None = None,
    ) -> None:
        """Adds a snapshot on top of the previous ones. ``schemas`` contains the version of every file. ``staged`` are
        files to add beside those of the change. Raises `TableUnavailable` if they were staged for other specs.
        """
        before = self._current_manifests()
        counted = self._digest.files + len(change.added) + (0 if staged is None else staged.digest.files)
        writer = self._new_writer(most_files(counted), None if staged is None else staged.snapshot_id)
        manifests = self._without(writer, before, change.removed)
        manifests, deletes = self._without_deletes(writer, manifests, change.deletes_removed)
        manifests = self._merged(writer, manifests)
        added = self._added(writer, change.added, schemas) + self._deletes_added(writer, change.deletes_added)
        for removed in change.removed:
            self._digest.remove(removed)
        for file in change.added:
            self._digest.add(LiveFile.of(file))
        if staged is not None:
            added += self._take(staged, writer.sequence_number, schemas)
        self._finish(writer, added + manifests, change, deletes, position, staged)

    def _take(
        self, staged: StagedFiles, sequence_number: int, schemas: Mapping[int, TableSchema]
    ) -> list[ManifestFile]:
        if any(self._spec_of(schemas[version]).spec_id != spec_id for version, spec_id in staged.specs.items()):
            raise TableUnavailable(f"{'.'.join(self.table.name())}: its partition specs were changed meanwhile")
        self._staged = staged
        staged.in_doubt = True
        self._digest = self._digest.moved(Digest(), staged.digest)
        return staged.manifests(sequence_number)

    def set_stamp(self, position: Position | None) -> None:
        """Call it once, after the last snapshot, which becomes the current one."""
        head = self._head
        if self._writers and head is not None:
            self.updates.append(_ref(MAIN_BRANCH, SnapshotRefType.BRANCH, head.snapshot_id))
        before = self.table.metadata.properties
        if position is None and POSITION in before:
            self.updates.append(RemovePropertiesUpdate(removals=[POSITION]))
        wanted = Stamp(self._digest, None if head is None else head.snapshot_id, position).properties()
        if any(before.get(name) != value for name, value in wanted.items()):
            self.set_properties(wanted)

    def restart_digest(self, digest: Digest) -> None:
        """Replaces the stamp's digest by one that was computed from the live files."""
        self._digest = digest.copy()

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self.updates.append(SetPropertiesUpdate(updates=dict(properties)))

    def stop(self, reason: str | None) -> None:
        """Records in the table's properties why commits have stopped, or removes the reason."""
        before = self.table.metadata.properties.get(STOPPED)
        if reason is None and before is not None:
            self.updates.append(RemovePropertiesUpdate(removals=[STOPPED]))
        elif reason is not None and reason != before:
            self.set_properties({STOPPED: reason})

    def set_tag(self, name: str, snapshot_id: int) -> None:
        self.updates.append(_ref(name, SnapshotRefType.TAG, snapshot_id))

    def remove_tag(self, name: str) -> None:
        self.updates.append(RemoveSnapshotRefUpdate(ref_name=name))

    def retain(self, retention: Retention) -> None:
        """Expires snapshots that were there before this commit, by the retention."""
        if not self._writers:
            return
        self.expire([snapshot.snapshot_id for snapshot in retention.expired(self.table.metadata, _now_ms())])

    def expire(self, snapshot_ids: Iterable[int]) -> None:
        """Expires snapshots; branches and tags that refer to them must be removed before."""
        known = {snapshot.snapshot_id: snapshot for snapshot in self.table.metadata.snapshots}
        expired = [known[wanted] for wanted in snapshot_ids if wanted in known]
        if not expired:
            return
        dropped = self._known_manifests.dropped
        found = unreferenced_files(self.table.io, self.table.metadata, expired, dropped)
        self.unreferenced += own_files(found, location=self.table.location())
        self.updates.append(RemoveSnapshotsUpdate(snapshot_ids=[snapshot.snapshot_id for snapshot in expired]))

    def requirements(self) -> tuple[TableRequirement, ...]:
        base = None if self._base is None else self._base.snapshot_id
        return (
            AssertTableUUID(uuid=self.table.metadata.table_uuid),
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=base),
        )

    def discard(self) -> None:
        """Removes the files that were written for the commit. Only if it has certainly not happened."""
        for writer in self._writers:
            writer.discard()
        if self._staged is not None:
            self._staged.in_doubt = False  # another attempt may take them

    def _new_writer(self, most: int, snapshot_id: int | None) -> SnapshotManifestWriter:
        metadata = self.table.metadata
        sequence = metadata.next_sequence_number() + len(self._writers)
        snapshot_id = metadata.new_snapshot_id() if snapshot_id is None else snapshot_id
        writer = SnapshotManifestWriter(self.table, self._schema, snapshot_id, sequence, most)
        self._writers.append(writer)
        return writer

    def _current_manifests(self) -> list[ManifestFile]:
        if self._manifests is None:
            found = [] if self._base is None else self._base.manifests(self.table.io)
            self._manifests = found
        return [manifest for manifest in self._manifests if is_live(manifest)]

    def _added(
        self, writer: SnapshotManifestWriter, files: Sequence[TableFile], schemas: Mapping[int, TableSchema]
    ) -> list[ManifestFile]:
        by_spec: defaultdict[int, list[DataFile]] = defaultdict(list)
        for file in files:
            spec = self._spec_of(schemas[file.schema_version])
            made = self._data_files(schemas[file.schema_version]).make(file, spec.spec_id, self.table.io)
            by_spec[spec.spec_id].append(made)
        return [manifest for spec_id, made in by_spec.items() for manifest in writer.add(self._specs[spec_id], made)]

    def _without(
        self, writer: SnapshotManifestWriter, manifests: list[ManifestFile], removed: Sequence[LiveFile]
    ) -> list[ManifestFile]:
        """Searches manifests whose bounds match the partitions first, newest first; the others only for the rest."""
        missing = {file.path for file in removed}
        if not missing:
            return manifests
        partitions = self._partitions({file.partition_path for file in removed})
        kinds = {spec_id: partition_kinds(self._schema, self._specs[spec_id]) for spec_id in partitions}
        result = dict(enumerate(manifests))
        places = [place for place, found in result.items() if found.content == ManifestContent.DATA]
        likely = [
            place
            for place in places
            if (spec_id := manifests[place].partition_spec_id) in partitions
            and may_contain(manifests[place], partitions[spec_id], kinds[spec_id])
        ]
        likely.sort(key=lambda place: manifests[place].sequence_number, reverse=True)
        for place in [*likely, *sorted(set(places) - set(likely))]:
            if not missing:
                break
            manifest = manifests[place]
            result[place], found_paths = writer.remove(self._specs[manifest.partition_spec_id], manifest, missing)
            missing -= found_paths.keys()
        if missing:
            raise FilesMissing(
                f"{'.'.join(self.table.name())}: {sorted(missing)[0]} should be removed, but is not in Iceberg's "
                "current snapshot"
            )
        return [result[place] for place in range(len(manifests))]

    def _without_deletes(
        self, writer: SnapshotManifestWriter, manifests: list[ManifestFile], paths: Sequence[str]
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """Returns the manifests without these delete files, and the files' entries."""
        missing, removed = set(paths), list[DataFile]()
        result = list(manifests)
        for place, manifest in enumerate(manifests):
            if missing and manifest.content == ManifestContent.DELETES:
                spec = self._specs[manifest.partition_spec_id]
                result[place], found = writer.remove(spec, manifest, missing)
                removed += found.values()
                missing -= found.keys()
        if missing:
            raise FilesMissing(
                f"{'.'.join(self.table.name())}: the delete file {sorted(missing)[0]} should be removed, but is not in "
                "Iceberg's current snapshot"
            )
        return result, removed

    def _deletes_added(self, writer: SnapshotManifestWriter, files: Sequence[DataFile]) -> list[ManifestFile]:
        by_spec: defaultdict[int, list[DataFile]] = defaultdict(list)
        for file in files:
            by_spec[file.spec_id].append(file)
        return [
            manifest
            for spec_id, alike in by_spec.items()
            for manifest in writer.add(self._specs[spec_id], alike, ManifestContent.DELETES)
        ]

    def _partitions(self, paths: set[str]) -> dict[int, set[Record]]:
        """Returns the partitions by spec, for specs that the paths can belong to."""
        found: defaultdict[int, set[Record]] = defaultdict(set)
        for spec in self._specs.values():
            schema = schema_of(self.table.metadata, spec, self._schema)
            partitioning = Partitioning(TableSchema(0, schema, spec, UNSORTED_SORT_ORDER))
            for path in paths:
                with suppress(PartitionProblem):
                    found[spec.spec_id].add(partitioning.values(path))
        return found

    def _merged(self, writer: SnapshotManifestWriter, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Merges manifests of earlier snapshots only: entries of this one must keep their status."""
        old = [manifest for manifest in manifests if manifest.added_snapshot_id != writer.snapshot_id]
        for spec_id, group in merge_groups(old, writer.most):
            gone = {manifest.manifest_path for manifest in group}
            manifests = [
                *writer.merge(self._specs[spec_id], group),
                *(manifest for manifest in manifests if manifest.manifest_path not in gone),
            ]
        return manifests

    def _finish(
        self,
        writer: SnapshotManifestWriter,
        manifests: list[ManifestFile],
        change: SnapshotChange,
        deletes: Sequence[DataFile],
        position: Position | None,
        staged: StagedFiles | None,
    ) -> None:
        parent = self._head
        totals = summary_of(change.added, change.removed, change.deletes_added, deletes, parent, staged)
        operation = change.operation_with(staged=staged is not None and staged.digest.files > 0)
        stamp = Stamp(self._digest, writer.snapshot_id, position)
        path = writer.write_list(self._known_manifests.lists, manifests, None if parent is None else parent.snapshot_id)
        if parent is not None and self._manifests is not None:
            dropped = DroppedManifests.between(parent.snapshot_id, self._manifests, manifests)
            self._dropped[writer.snapshot_id] = dropped
        snapshot = Snapshot(
            snapshot_id=writer.snapshot_id,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            sequence_number=writer.sequence_number,
            timestamp_ms=max(_now_ms(), self.table.metadata.last_updated_ms),
            manifest_list=path,
            summary=Summary(operation, **totals, **stamp.summary()),
            schema_id=self._schema.schema_id,
        )
        self.updates.append(AddSnapshotUpdate(snapshot=snapshot))
        self._head, self._manifests = snapshot, manifests

    def _data_files(self, schema: TableSchema) -> DataFiles:
        known = self._known.get(schema.version)
        if known is None:
            known = self._known[schema.version] = DataFiles(schema)
        return known

    def _spec_of(self, schema: TableSchema) -> PartitionSpec:
        """Returns the table's spec for files of this version; an unknown one is added without becoming current."""
        known = find_spec(self._specs, schema.partition)
        if known is not None:
            return known
        spec = PartitionSpec(*schema.partition.fields, spec_id=max(self._specs) + 1)
        self._specs[spec.spec_id] = spec
        self.updates.append(AddPartitionSpecUpdate(spec=spec))
        return spec


def _ref(name: str, kind: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate.model_validate({"ref-name": name, "type": kind, "snapshot-id": snapshot_id})


def _now_ms() -> int:
    return int(time.time() * 1000)
