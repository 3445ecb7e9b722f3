"""`MetadataStore`: the operations ("verbs") of a registry, the same on every backend.

Common to all verbs:

- A verb is one transaction: it happens completely or not at all, and it is durable when the verb returns.
- ``get_*`` and ``find_*`` return None if the thing does not exist; a verb that changes a missing thing raises NotFound.
- Errors are those of `registry.errors`. Arguments are checked before anything is sent; a bad one raises Invalid.
- Cancelling a verb leaves its transaction either committed or rolled back, and the store usable.
- A bulk verb is one round trip, whatever the number of rows; `swap_files` and `commit_catalog` are a constant number.
  An empty bulk call does nothing.
- Pages follow a key, not a row count: pass the last key of a page as ``after``. The ``stream_*`` verbs read all pages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from registry.inputs import (
    CatalogCommit,
    CompactionDraft,
    CompactionOutcome,
    Fence,
    FileDraft,
    OffsetDraft,
    ProducerDraft,
    Registration,
    SegmentDraft,
    SnapshotDraft,
    TableDraft,
)
from registry.json_text import JsonValue
from registry.models import (
    Agent,
    CatalogRequest,
    CatalogTable,
    Compaction,
    CompactionStatus,
    ConsumerGroup,
    ConsumerOffset,
    DaemonLease,
    DatabaseTime,
    FileAwaitingDeletion,
    FileOperation,
    FileSizes,
    GroupLease,
    LakeTable,
    LedgerEntry,
    LocationName,
    NamespaceChange,
    Partition,
    PartitionLease,
    ProducerSequence,
    Row,
    RunningDaemon,
    Savings,
    Segment,
    SnapshotStatus,
    SnapshotTrigger,
    SourceIdentity,
    TableDeleteFile,
    TableFile,
    TableInsert,
    TableMetadata,
    TableOrder,
    TablePage,
    TableSnapshot,
    TableStats,
    TableStatus,
    Topic,
    UploadIntent,
)
from registry.position import Position, SnapshotVisibility

R = TypeVar("R", bound=Row)

PAGE = 1_000
"""The default number of rows per page."""


class Topics(Protocol):
    async def create_topic(
        self,
        name: str,
        partition_count: int,
        *,
        retention_ms: int | None = None,
        config: Mapping[str, JsonValue] | None = None,
    ) -> Topic:
        """Creates a topic with the partitions ``0..partition_count-1``. Raises AlreadyExists if the name is taken."""
        ...  # fmt: skip

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic with its partitions, segments, leases, producer sequences and committed offsets.

        Objects without any segment left become upload intents.
        """
        ...

    async def get_topic(self, name: str) -> Topic | None: ...

    async def list_topics(self) -> list[Topic]:
        """Returns all topics, sorted by name."""
        ...

    async def update_topic_config(
        self, name: str, config: Mapping[str, JsonValue], *, retention_ms: int | None = None
    ) -> Topic:
        """Replaces configuration and retention. ``retention_ms=None`` keeps records forever."""
        ...

    async def get_partition(self, topic: str, partition_id: int) -> Partition | None: ...

    async def get_partitions(self, keys: Sequence[tuple[str, int]]) -> list[Partition]:
        """Returns those that exist, sorted by topic and partition id. Never from a cache."""
        ...

    async def list_partitions(self, topic: str) -> list[Partition]:
        """Returns all partitions, sorted by partition id. Raises NotFound for an unknown topic."""
        ...

    async def update_high_watermark(self, topic: str, partition_id: int, high_watermark: int) -> Partition:
        """Moves the high watermark forward; a lower value changes nothing. Returns the partition."""
        ...


class Segments(Protocol):
    async def add_segment(self, segment: SegmentDraft, *, fence: Fence | None = None) -> None:
        """`add_segments` with one segment and at most one fence."""
        ...

    async def add_segments(
        self,
        segments: Sequence[SegmentDraft],
        *,
        fences: Sequence[Fence] = (),
        producers: Sequence[ProducerDraft] = (),
        intents_of: str | None = None,
    ) -> None:
        """Registers segments of any number of partitions and moves the partitions' watermarks past them.

        Raises NotFound if a partition does not exist, Conflict if a segment overlaps a registered one, and Invalid if
        two segments of this call overlap. Raises Fenced if some of ``fences`` are not the current leases of their
        partitions; ``names`` lists all of them as ``topic/partition``. An expired lease is current until another agent
        acquires it. Raises OutOfSequence if some of ``producers`` (each at most once per partition) do not continue
        their recorded sequence: ``first_sequence`` must follow the last one, or the epoch must be higher; ``names``
        lists their partitions.

        Completes the upload intents of the segments' objects in the same transaction. With ``intents_of``, each object
        must have an intent of this owner, or live segments; else raises a Conflict that names the objects.
        """
        ...  # fmt: skip

    async def replace_segments(
        self, old: Sequence[Segment], new: Sequence[SegmentDraft], *, intents_of: str | None = None
    ) -> None:
        """Replaces `old` segments, as they were read, by `new` ones with the same offsets: a merge. Watermarks stay.

        Raises a Conflict that names the old segments that are gone or changed as ``topic/partition/base_offset``, and
        Invalid if the new segments contain other offsets. ``intents_of`` as in `add_segments`. Objects without any
        segment left become upload intents.
        """
        ...

    async def get_segments(
        self, topic: str, partition_id: int, *, from_offset: int = 0, limit: int = PAGE
    ) -> list[Segment]:
        """Returns segments that contain ``from_offset`` or later offsets, in order.

        The next page starts from the last ``end_offset + 1``. Raises NotFound if the partition does not exist.
        """
        ...

    def stream_segments(self, topic: str, partition_id: int, *, from_offset: int = 0) -> AsyncIterator[Segment]:
        """Streams the same segments. Pages grow, so that a caller that stops early has read little."""
        ...

    def stream_segments_backwards(self, topic: str, partition_id: int) -> AsyncIterator[Segment]:
        """Streams all segments from the last one to the first, in growing pages."""
        ...

    async def find_segment_for_offset(self, topic: str, partition_id: int, offset: int) -> Segment | None:
        """Returns the segment that contains ``offset``, or None. Raises NotFound if the partition does not exist."""
        ...

    async def find_segment_for_timestamp(self, topic: str, partition_id: int, timestamp: int) -> Segment | None:
        """Returns the first segment, by offset, that may contain a record of ``timestamp`` or later, or None."""
        ...

    async def find_segment_for_size(self, topic: str, partition_id: int, size_bytes: int) -> Segment | None:
        """Returns the last segment, by offset, that together with all later ones has at least ``size_bytes``.

        None if the whole partition is smaller. Reads from the end, only as far as the returned segment.
        """
        ...

    async def get_object_segments(self, s3_bucket: str, s3_key: str) -> list[Segment]:
        """Returns the live segments of an object, sorted by byte offset."""
        ...

    async def delete_segments_before(
        self, topic: str, partition_id: int, offset: int, *, limit: int | None = None
    ) -> int:
        """Deletes segments that end below ``offset``, at most the first ``limit``. Returns how many were deleted.

        The watermark stays. An object without any segment left becomes an upload intent, by which a cleaner of stale
        intents finds and deletes it.
        """
        ...

    async def get_producer_sequences(self, keys: Sequence[tuple[str, int, str]]) -> list[ProducerSequence]:
        """Returns the recorded sequences of (topic, partition id, producer id), sorted by these keys."""
        ...

    async def forget_producers(self, idle_ms: int, *, limit: int = PAGE) -> int:
        """Deletes the sequences of producers that have not written to a partition for ``idle_ms``. Returns how many.

        Their later retries are not deduplicated.
        """
        ...


class ConsumerGroups(Protocol):
    async def ensure_consumer_group(self, group_id: str) -> ConsumerGroup:
        """Returns the group; creates it if it does not exist."""
        ...

    async def commit_offset(
        self, group_id: str, topic: str, partition_id: int, offset: int, metadata: str | None = None
    ) -> None:
        """`commit_offsets` with one offset."""
        ...

    async def commit_offsets(
        self, group_id: str, offsets: Sequence[OffsetDraft], *, leases: Sequence[GroupLease] = ()
    ) -> None:
        """Commits offsets. The last commit wins, even if its offset is lower; also among several in one call.

        Raises Fenced, and writes nothing, if some of ``leases`` are not current; ``names`` lists all of them as
        ``topic/partition``. An expired lease is current until another member acquires it.
        """
        ...  # fmt: skip

    async def reset_offsets(self, group_id: str, offsets: Sequence[OffsetDraft]) -> list[OffsetDraft]:
        """Commits offsets that an operator chose. Returns them as committed, sorted by topic and partition id.

        Raises Invalid, and writes nothing, if one is beyond its partition's end: records written up to there would
        never be read. The end itself is allowed. An offset below the first retained one is raised to that. Creates the
        group if it does not exist. Of several offsets for one partition, the last wins.
        """
        ...

    async def get_committed_offset(self, group_id: str, topic: str, partition_id: int) -> ConsumerOffset | None: ...

    async def get_consumer_offsets(self, group_id: str) -> list[ConsumerOffset]: ...

    async def delete_consumer_group(self, group_id: str) -> None:
        """Deletes a group with its committed offsets and leases."""
        ...

    async def acquire_group_leases(
        self, group_id: str, partitions: Sequence[tuple[str, int]], member_id: str, ttl_ms: int
    ) -> list[GroupLease]:
        """Acquires the leases that are free, expired or the member's own, each with a new epoch, and returns them.

        The others stay as they are. A member is a registered agent, whose heartbeats renew its leases. Offsets
        committed under an earlier epoch are visible to the new holder; later commits under it raise Fenced.
        """
        ...

    async def release_group_lease(self, lease: GroupLease) -> bool:
        """Returns False if the lease was no longer held in its epoch."""
        ...

    async def list_group_leases(self, group_id: str, *, topic: str | None = None) -> list[GroupLease]:
        """Returns all leases, released ones too, sorted by topic and partition id."""
        ...


class Agents(Protocol):
    async def register_agent(
        self,
        agent_id: str,
        address: str,
        *,
        zone: str = "",
        group: str = "",
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Agent:
        """Registers an agent, or replaces its registration if the id is known: the agent has restarted."""
        ...  # fmt: skip

    async def heartbeat(self, agent_id: str) -> None:
        """Renews all leases that the agent holds: each for the term with which it was acquired. Changes only its row.

        Leases that were taken over before stay with their new holders. Raises NotFound if the agent was deregistered,
        and with it lost everything.
        """
        ...

    async def get_agent(self, agent_id: str) -> Agent | None: ...

    async def list_agents(self, *, alive_within_ms: int | None = None, group: str | None = None) -> list[Agent]:
        """Returns agents sorted by id: all, or those with a heartbeat within the last ``alive_within_ms``."""
        ...

    async def deregister_agent(self, agent_id: str, *, last_heartbeat: int | None = None) -> None:
        """Deletes an agent. Its leases become free at once; their epochs stay.

        With ``last_heartbeat``, only if the agent has not sent another one since. Else raises NotFound.
        """
        ...

    async def acquire_partition_lease(
        self, topic: str, partition_id: int, agent_id: str, ttl_ms: int
    ) -> PartitionLease:
        """Acquires a lease that is free, expired or the agent's own, with a new epoch. Else raises Conflict.

        The lease expires ``ttl_ms`` after the acquisition or after the agent's last heartbeat, whichever is later, and
        stays the agent's until another one acquires it. The Conflict names the holder.
        """
        ...

    async def acquire_partition_leases(
        self, partitions: Sequence[tuple[str, int]], agent_id: str, ttl_ms: int
    ) -> list[PartitionLease]:
        """Acquires the leases that are free, expired or the agent's own, and returns them. The others stay."""
        ...

    async def release_partition_lease(self, lease: PartitionLease) -> bool:
        """Returns False if the lease was no longer held in its epoch."""
        ...

    async def get_partition_lease(self, topic: str, partition_id: int) -> PartitionLease | None: ...

    async def list_partition_leases(
        self, *, topic: str | None = None, agent_id: str | None = None
    ) -> list[PartitionLease]: ...


class LakeTables(Protocol):
    async def create_table(self, database: str, name: str, location: str, draft: TableDraft) -> LakeTable:
        """Creates a table with schema version 1. Raises AlreadyExists if the name is taken, Invalid if ``name`` has a
        dot: a dot separates a table from its database, and nested databases from each other.
        """
        ...

    async def get_table(self, database: str, name: str) -> LakeTable | None: ...

    async def get_table_by_id(self, table_id: int) -> LakeTable | None: ...

    async def list_tables(self, database: str | None = None) -> list[LakeTable]: ...

    async def search_tables(
        self,
        text: str = "",
        *,
        order: TableOrder = "name",
        after: tuple[str | int, int] | None = None,
        limit: int = PAGE,
    ) -> TablePage:
        """Returns a page of the tables whose ``database.name`` contains ``text``, in any case of letters.

        By name, or the largest (or last modified) first. For the next page, pass ``after`` of this one.
        """
        ...  # fmt: skip

    async def alter_table(
        self,
        table_id: int,
        *,
        database: str | None = None,
        name: str | None = None,
        location: str | None = None,
        status: TableStatus | None = None,
        properties: Mapping[str, JsonValue] | None = None,
    ) -> LakeTable:
        """Changes the given attributes. Properties replace those of the current schema version.

        A new name or location also updates the row of the current schema version, so that subscribers to
        `table_metadata` get an event.
        """
        ...  # fmt: skip

    async def drop_table(self, table_id: int, *, purge: bool = False) -> None:
        """Deletes a table and all its rows. ``purge`` adds its files to the files awaiting deletion."""
        ...

    async def add_schema_version(self, table_id: int, draft: TableDraft, *, expected: int) -> TableMetadata:
        """Adds schema version ``expected + 1``. Raises Conflict if the current version is not ``expected``."""
        ...

    async def get_table_metadata(self, table_id: int, schema_version: int | None = None) -> TableMetadata | None:
        """Returns the given schema version, by default the current one."""
        ...

    async def list_table_metadata(self, table_id: int) -> list[TableMetadata]: ...


class Files(Protocol):
    """A verb that changes files updates the statistics of table and partitions in the same transaction."""

    async def add_files(
        self,
        table_id: int,
        files: Sequence[FileDraft],
        *,
        operation: FileOperation = "insert",
        operation_id: str | None = None,
        intents_of: str | None = None,
    ) -> list[TableFile]:
        """Adds files, and completes the upload intents of their paths. Returns the rows in the order of ``files``.

        Raises AlreadyExists if the table has a file with one of the paths. With ``intents_of``, each path must have an
        intent of this owner; else raises a Conflict that names the others: a cleaner has claimed them and may have
        deleted the files.
        """
        ...  # fmt: skip

    async def register_files(self, registrations: Sequence[Registration]) -> list[list[TableFile]]:
        """`add_files` for several registrations, of any tables, in one transaction.

        Each registration's ``advances`` move committed offsets with it, even if it has no files. Raises OffsetsMoved,
        with ``names`` as ``topic/partition``, if a group's committed offset is not the expected one, and NotFound if
        the group, the topic or the partition does not exist. Raises AlreadyInserted if the table has an insert with
        the ``insert_id`` of a registration.
        """
        ...

    async def get_insert(self, table_id: int, insert_id: str) -> TableInsert | None: ...

    async def remove_files(self, table_id: int, files: Sequence[TableFile], *, reason: str) -> None:
        """Removes `files`, given as they were read, and adds them to the files awaiting deletion.

        Raises a Conflict that names those that are gone or changed since they were read.
        """
        ...

    async def swap_files(
        self,
        table_id: int,
        old: Sequence[TableFile],
        new: Sequence[FileDraft],
        *,
        operation_id: str,
        operation: FileOperation = "compaction",
        intents_of: str | None = None,
        seen_deletes: Sequence[TableDeleteFile] = (),
        removed_deletes: Sequence[TableDeleteFile] = (),
    ) -> list[TableFile]:
        """Replaces `old` files, given as they were read, by `new` ones. Returns the new rows in the order of ``new``.

        Raises a Conflict that names the old files that are gone or changed since they were read. A new file whose path
        awaits deletion is removed from that list. A rollback's new files must all be on it: the Conflict names those
        that are not, because a cleaner may be deleting them. ``intents_of`` as in `add_files`. The compaction with this
        ``operation_id``, if there is one, becomes ``done`` in the same transaction.

        A compaction's new files leave out the rows that ``seen_deletes`` and ``removed_deletes`` delete. Raises a
        Conflict that names any other delete file of the old files' partitions, or of the whole table; a rollback as
        well. ``removed_deletes`` are removed, because no remaining data file needs them, and added to the files
        awaiting deletion.
        """
        ...  # fmt: skip

    async def list_delete_files(
        self, table_id: int, *, partition_path: str | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableDeleteFile]:
        """Returns a page sorted by id, after the id ``after``."""
        ...

    async def get_files(self, table_id: int, paths: Sequence[str]) -> list[TableFile]:
        """Returns the live files with these paths, sorted by id."""
        ...

    async def list_files(
        self, table_id: int, *, partition_path: str | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableFile]:
        """Returns a page sorted by id, after the id ``after``."""
        ...

    def stream_files(self, table_id: int, *, partition_path: str | None = None) -> AsyncIterator[TableFile]: ...

    async def get_statistics(self, table_id: int) -> list[TableStats]:
        """Returns statistics sorted by partition path. A partition that has lost its last file stays, with zeros."""
        ...

    async def count_file_sizes(self, table_id: int, bounds: Sequence[int]) -> list[FileSizes]:
        """Counts the live files between the ascending ``bounds``, the first of which is 0. Classes without files are
        left out.
        """
        ...

    async def recount_statistics(self, table_id: int) -> LakeTable:
        """Recomputes the statistics of table and partitions from the files."""
        ...

    async def record_intents(self, paths: Sequence[str], *, purpose: str, owner: str) -> None:
        """Call before an upload: announces that these objects may come to exist. Replaces earlier intents of a path."""
        ...

    async def renew_intents(
        self, paths: Sequence[str] | None, *, owner: str, new_owner: str | None = None
    ) -> list[str]:
        """Renews the owner's intents, as if recorded now (by ``new_owner``). Returns the renewed paths, sorted.

        ``paths=None`` means all of the owner's. The others are completed, or claimed by a cleaner that may have deleted
        their objects.
        """
        ...

    async def complete_intents(self, paths: Sequence[str]) -> None:
        """Deletes intents, because their objects are registered or were deleted."""
        ...

    async def list_stale_intents(self, older_than_ms: int, *, after: str = "", limit: int = PAGE) -> list[UploadIntent]:
        """Returns intents recorded at least ``older_than_ms`` ago, sorted by path, after the path ``after``."""
        ...

    async def claim_stale_intents(self, older_than_ms: int, *, owner: str, limit: int = PAGE) -> list[UploadIntent]:
        """Makes ``owner`` the owner of intents recorded at least ``older_than_ms`` ago. Returns them sorted by path.

        They count as recorded now. No other owner can register their objects any more, so ``owner`` may delete them.
        """
        ...

    async def list_files_awaiting_deletion(
        self, *, table_id: int | None = None, removed_before: int | None = None, after: int = 0, limit: int = PAGE
    ) -> list[FileAwaitingDeletion]:
        """Returns a page sorted by id, after the id ``after``."""
        ...

    async def claim_files_awaiting_deletion(
        self, ids: Sequence[int], *, purpose: str, owner: str
    ) -> list[FileAwaitingDeletion]:
        """Removes those that are still listed, and records upload intents of ``owner`` for their paths. Returns them.

        No rollback can restore them any more, so ``owner`` may delete them. If it crashes, a cleaner of stale intents
        does.
        """
        ...

    async def forget_deleted_files(self, ids: Sequence[int]) -> None:
        """Removes files from the list after they were deleted from storage."""
        ...


class Snapshots(Protocol):
    async def request_snapshot(
        self, table_id: int, *, trigger: SnapshotTrigger = "manual", tag: str | None = None, reason: str | None = None
    ) -> TableSnapshot:
        """Adds a row of status ``requested`` for the snapshotter. Raises AlreadyExists if the tag is taken."""
        ...

    async def record_snapshot(self, table_id: int, draft: SnapshotDraft) -> TableSnapshot: ...

    async def update_snapshot(self, row_id: int, draft: SnapshotDraft) -> TableSnapshot:
        """Replaces all columns that the draft has."""
        ...

    async def list_snapshots(
        self, table_id: int, *, status: SnapshotStatus | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableSnapshot]:
        """Returns a page sorted by row id, after the row id ``after``."""
        ...


class Compactions(Protocol):
    """The compactor's journal: the decision about each partition, the owner of a running compaction, and its outcome.

    A partition has at most one row that is ``waiting`` or ``declined``, and at most one that is ``running``.
    """

    async def record_compactions(self, drafts: Sequence[CompactionDraft]) -> None:
        """Records the current decision per partition, which replaces its ``waiting`` or ``declined`` row.

        The same decision again (status, rule and reason) changes nothing. Of several for one partition, the last wins.
        """
        ...

    async def begin_compaction(
        self, draft: CompactionDraft, *, operation_id: str, owner: str, stale_after_ms: int
    ) -> Compaction:
        """Makes the partition's ``waiting`` or ``declined`` row ``running``, or inserts a running one, and returns it.

        Raises a Conflict that names the owner of a compaction that is already running on the partition. One that was
        not renewed for ``stale_after_ms`` is ``aborted`` instead. A repetition with the same ``operation_id`` returns
        the same row.
        """
        ...

    async def renew_compactions(self, ids: Sequence[int], *, owner: str) -> list[Compaction]:
        """Renews the owner's compactions that are still running. Returns them, with ``cancel_requested``, sorted by id.

        The others have ended, or were aborted as stale.
        """
        ...

    async def finish_compaction(self, row_id: int, outcome: CompactionOutcome, *, owner: str) -> Compaction:
        """Records the outcome of a compaction that ``owner`` began, even if it was aborted as stale meanwhile.

        Raises Conflict if it ended with another status. A repetition may add details.
        """
        ...

    async def request_cancel(self, table_id: int, *, partition_path: str | None = None) -> list[Compaction]:
        """Cancels the table's waiting compactions, and sets ``cancel_requested`` on running ones. Returns both, by id.

        The owner of a running one gets the request with its next renewal.
        """
        ...

    async def get_compaction(self, row_id: int) -> Compaction | None: ...

    async def list_compactions(
        self,
        *,
        table_id: int | None = None,
        statuses: Sequence[CompactionStatus] = (),
        started_since: int | None = None,
        before: tuple[int, int] | None = None,
        limit: int = PAGE,
    ) -> list[Compaction]:
        """Returns the newest decisions first, of any status unless ``statuses`` are given.

        For the next page, pass ``(decided_at, id)`` of the last row as ``before``.
        """
        ...

    async def get_savings(self, *, table_id: int | None = None) -> list[Savings]:
        """Returns totals over the rows that are ``done`` and not pruned, sorted by table id."""
        ...

    async def prune_compactions(
        self, older_than_ms: int, *, statuses: Sequence[CompactionStatus] = ("waiting", "declined"), limit: int = PAGE
    ) -> int:
        """Deletes rows of these statuses not updated for ``older_than_ms``. Returns how many.

        Raises Invalid for the status ``running``.
        """
        ...


class DaemonState(Protocol):
    """The daemon's own state. Not published: the daemon does not follow its own writes."""

    async def take_daemon_lease(
        self, name: str, holder: str, ttl_ms: int, *, dead: DaemonLease | None = None
    ) -> DaemonLease | None:
        """Acquires leadership with a new epoch if the lease is free, expired or the holder's own. Else returns None.

        ``dead``: a lease that the caller has seen unchanged for several of its terms. If it is still unchanged, it is
        taken over, whatever the wall clock says.
        """
        ...

    async def renew_daemon_lease(self, lease: DaemonLease, ttl_ms: int) -> DaemonLease:
        """Extends the expiry. Raises Fenced if the lease is no longer held in this epoch."""
        ...

    async def release_daemon_lease(self, lease: DaemonLease) -> bool: ...

    async def get_daemon_lease(self, name: str) -> DaemonLease | None: ...

    async def read_ledger(self, group: str | None = None) -> list[LedgerEntry]:
        """Returns the entries of one group of daemons, or of all groups, sorted by group and component."""
        ...

    async def write_ledger(self, entries: Sequence[LedgerEntry], lease: DaemonLease) -> None:
        """Writes one entry per component of the lease's group. Raises Fenced, and writes nothing, if the lease is not
        current, and Invalid if an entry belongs to another group.
        """
        ...

    async def forget_component(self, group: str, component: str) -> None:
        """Deletes the component's entry in the ledger of this group."""
        ...

    async def record_daemon(self, daemon: RunningDaemon) -> None:
        """Writes the daemon's row, or replaces it."""
        ...

    async def list_daemons(self) -> list[RunningDaemon]:
        """Returns the daemons of all groups, sorted by group and holder. Some may have died since they were seen."""
        ...

    async def forget_daemon(self, holder: str) -> None: ...

    async def prune_daemons(self, not_seen_for_ms: int) -> int:
        """Deletes the rows of daemons that were not seen for so long. Returns how many."""
        ...

    async def get_source_identity(self, name: str) -> SourceIdentity | None: ...

    async def record_source_identity(self, name: str, identity: str) -> None: ...

    async def ensure_source_identity(self, name: str, identity: str) -> SourceIdentity:
        """Records ``identity`` unless one is recorded. Returns the recorded one, the same to all concurrent callers."""
        ...


class LakeLocations(Protocol):
    """The locations of the lake, by name: `warehouse` and `streams`."""

    async def get_lake_locations(self) -> dict[str, str]: ...

    async def ensure_lake_locations(self, locations: Mapping[LocationName, str]) -> dict[str, str]:
        """Records those that are not recorded. Returns the recorded ones, the same to all concurrent callers."""
        ...

    async def record_lake_locations(self, locations: Mapping[LocationName, str]) -> None:
        """Replaces recorded ones."""
        ...


class IcebergCatalog(Protocol):
    """The Iceberg catalog in the registry's database. A namespace of several levels is written with dots."""

    async def get_catalog_table(self, catalog: str, namespace: str, name: str) -> CatalogTable | None: ...

    async def list_catalog_tables(
        self, catalog: str, namespace: str, *, after: str = "", limit: int = PAGE
    ) -> list[CatalogTable]:
        """Returns a page of the namespace's own tables, sorted by name. Views are left out."""
        ...

    async def list_catalog_namespaces(self, catalog: str) -> list[str]:
        """Returns every namespace that has tables or properties, sorted."""
        ...

    async def get_namespace_properties(self, catalog: str, namespace: str) -> dict[str, str]:
        """Returns its properties without ``exists``, which the catalog keeps for a namespace without others."""
        ...

    async def create_catalog_namespace(
        self,
        catalog: str,
        namespace: str,
        properties: Mapping[str, str],
        *,
        request: CatalogRequest | None = None,
    ) -> None:
        """Raises AlreadyExists if the namespace has properties, tables or namespaces, in the catalog or the registry.

        ``request``, here and in the verbs below, is recorded in the same transaction. If one with the same key is
        recorded, raises AlreadyCommitted, and changes nothing. Requests are forgotten after a day.
        """
        ...

    async def update_catalog_namespace(
        self,
        catalog: str,
        namespace: str,
        *,
        set: Mapping[str, str],  # noqa: A002  (the protocol's word)
        remove: Sequence[str],
        request: CatalogRequest | None = None,
    ) -> NamespaceChange:
        """Sets and removes properties. Raises NotFound if the namespace does not exist."""
        ...

    async def drop_catalog_namespace(
        self, catalog: str, namespace: str, *, request: CatalogRequest | None = None
    ) -> None:
        """Raises NotFound if the namespace does not exist, Conflict if it has tables or namespaces."""
        ...

    async def reserve_table_id(self) -> int:
        """Returns an id that no table has and no later one gets, for a `CatalogCommit` that creates a table."""
        ...

    async def commit_catalog(
        self,
        commits: Sequence[CatalogCommit],
        *,
        request: CatalogRequest | None = None,
        intents_of: str | None = None,
    ) -> None:
        """Moves the pointers of several tables together with the rows that change: all of them or nothing.

        Each table gets a row in `iceberg_commits`, before its other changes. Old rows of that table are pruned. Added
        files have the operation ``external`` and an operation id with the snapshot's.

        Raises Conflict if a pointer or a schema version is not the expected one, if a removed or required file is not
        live, if an added one is, if an added one may be deleted right now, or if the location of a new table, or one
        that moves, is another table's, around one or inside one; AlreadyExists if the name of a new table is taken;
        NotFound if a table is gone. An added file that awaits deletion is removed from that list. With
        ``intents_of``, each new metadata file must have an upload intent of this owner, which is completed.
        """
        ...

    async def get_catalog_request(self, request_key: str) -> CatalogRequest | None: ...

    async def rename_catalog_table(
        self,
        catalog: str,
        namespace: str,
        name: str,
        to_namespace: str,
        to_name: str,
        *,
        table_id: int | None = None,
        request: CatalogRequest | None = None,
    ) -> None:
        """Renames the catalog's table, and the registry's if it has one of that name.

        With ``table_id``, the registry's must be that one, else raises Conflict. Raises NotFound if the catalog has no
        such table, AlreadyExists if the new name is taken.
        """
        ...

    async def drop_catalog_table(
        self,
        catalog: str,
        namespace: str,
        name: str,
        *,
        purge: bool,
        table_id: int | None = None,
        request: CatalogRequest | None = None,
    ) -> None:
        """Drops the catalog's table, and the registry's if it has one of that name, as `drop_table` does.

        ``table_id`` as in `rename_catalog_table`. Raises NotFound if the catalog has no such table.
        """
        ...


class ConsistentRead(Protocol):
    """A consistent snapshot of the whole registry, and which transactions of the change stream it contains."""

    @property
    def visibility(self) -> SnapshotVisibility:
        """Raises Unavailable on a standby server, which can be read but does not know the running transactions."""
        ...

    async def count(self, kind: type[Row]) -> int: ...

    def rows(self, kind: type[R], *, page: int = PAGE, table_id: int | None = None) -> AsyncIterator[list[R]]:
        """Yields all rows of a table in pages, sorted by primary key. Memory is bounded by one page.

        ``table_id``: only rows of this lake table.
        """
        ...


class BulkLoad(Protocol):
    """Fills an empty registry in one transaction."""

    async def add(self, rows: Sequence[Row]) -> None:
        """Inserts rows as they are, ids included. Add parents before children."""
        ...

    async def count(self, kind: type[Row]) -> int: ...


class MetadataStore(
    Topics,
    Segments,
    ConsumerGroups,
    Agents,
    LakeTables,
    Files,
    Snapshots,
    Compactions,
    DaemonState,
    LakeLocations,
    IcebergCatalog,
    Protocol,
):
    async def time(self) -> DatabaseTime:
        """Returns the database's time, for comparison with the caller's clock."""
        ...

    async def position(self) -> Position:
        """Returns a position at or above every commit acknowledged before this call, to pass as ``at_least``."""
        ...

    def consistent_read(self, tables: Iterable[str] = ()) -> AbstractAsyncContextManager[ConsistentRead]:
        """Holds a snapshot open during the block. Does not block writers, except for TRUNCATE of one of `tables` until
        the block ends: PostgreSQL empties a truncated table in earlier snapshots too.
        """
        ...

    def load(self) -> AbstractAsyncContextManager[BulkLoad]:
        """Commits at the end of the block, rolls back if it raises. Raises Conflict if the registry is not empty."""
        ...

    async def close(self) -> None: ...
