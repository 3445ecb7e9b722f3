"""`MetadataStore`: everything one can ask of a registry, on any backend.

Common to all verbs:

- A verb is one transaction: all of it happens or nothing does, and it is durable when the verb returns.
- ``get_*`` and ``find_*`` answer None for what is not there; a verb that acts on something missing raises NotFound.
- Errors are those of `registry.errors`; arguments are checked before anything is sent.
- Cancelling a verb leaves its transaction committed whole or not at all, and the store usable.
- Bulk verbs are one round trip whatever the number of rows. An empty bulk call does nothing.
- Pages follow a key, never a row count: ``after`` takes the last key seen. The ``stream_*`` verbs do it for you.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from registry.inputs import (
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
    Compaction,
    CompactionStatus,
    ConsumerGroup,
    ConsumerOffset,
    DaemonLease,
    DatabaseTime,
    FileAwaitingDeletion,
    FileOperation,
    GroupLease,
    LakeTable,
    LedgerEntry,
    Partition,
    PartitionLease,
    ProducerSequence,
    Row,
    Savings,
    Segment,
    SnapshotStatus,
    SnapshotTrigger,
    SourceIdentity,
    TableFile,
    TableMetadata,
    TableSnapshot,
    TableStats,
    TableStatus,
    Topic,
    UploadIntent,
)
from registry.position import Position, SnapshotVisibility

R = TypeVar("R", bound=Row)

PAGE = 1_000
"""Rows in a page unless the caller says otherwise."""


class Topics(Protocol):
    async def create_topic(
        self,
        name: str,
        partition_count: int,
        *,
        retention_ms: int | None = None,
        config: Mapping[str, JsonValue] | None = None,
    ) -> Topic:
        """The topic and its partitions ``0..partition_count-1``. AlreadyExists if there is one of that name."""
        ...  # fmt: skip

    async def delete_topic(self, name: str) -> None:
        """With its partitions, segments, leases, producers and committed offsets. Objects that nothing is in any more
        become upload intents.
        """
        ...

    async def get_topic(self, name: str) -> Topic | None: ...

    async def list_topics(self) -> list[Topic]:
        """All of them, by name."""
        ...

    async def update_topic_config(
        self, name: str, config: Mapping[str, JsonValue], *, retention_ms: int | None = None
    ) -> Topic:
        """Replaces configuration and retention (None: keep for ever)."""
        ...

    async def get_partition(self, topic: str, partition_id: int) -> Partition | None: ...

    async def get_partitions(self, keys: Sequence[tuple[str, int]]) -> list[Partition]:
        """Those that exist, by topic and partition id. Never from a cache."""
        ...

    async def list_partitions(self, topic: str) -> list[Partition]:
        """By partition id. NotFound for an unknown topic."""
        ...

    async def update_high_watermark(self, topic: str, partition_id: int, high_watermark: int) -> Partition:
        """Moves it forward; a lower value changes nothing. Answers the partition as it is afterwards."""
        ...


class Segments(Protocol):
    async def add_segment(self, segment: SegmentDraft, *, fence: Fence | None = None) -> None:
        """`add_segments` of one."""
        ...

    async def add_segments(
        self,
        segments: Sequence[SegmentDraft],
        *,
        fences: Sequence[Fence] = (),
        producers: Sequence[ProducerDraft] = (),
        intents_of: str | None = None,
    ) -> None:
        """Registers segments of any number of partitions and moves their watermarks past them, or does nothing.

        NotFound: a partition does not exist. Conflict: a segment overlaps a registered one. Invalid: two segments
        of this call overlap. Fenced: some of ``fences`` are not the current leases of their partitions (whether one
        expired does not matter as long as nobody took it over); ``names`` lists all of them as ``topic/partition``.
        OutOfSequence: some of ``producers`` (each once a partition) don't continue what the registry has of them:
        ``first_sequence`` must follow the last one, or the epoch be higher; ``names`` lists their partitions.

        Upload intents for the objects of these segments are completed in the same transaction. With ``intents_of`` each
        object must have this owner's intent, or live segments already; else it is a Conflict that names the objects.
        """
        ...  # fmt: skip

    async def replace_segments(
        self, old: Sequence[Segment], new: Sequence[SegmentDraft], *, intents_of: str | None = None
    ) -> None:
        """`old`, as they were read, for `new` ones of the same offsets: a merge. Watermarks stay.

        Conflict names those of the old ones that are gone or changed, as ``topic/partition/base_offset``. Invalid: the
        new ones hold other offsets. ``intents_of`` as in `add_segments`. Objects that nothing is in any more become
        upload intents.
        """
        ...

    async def get_segments(
        self, topic: str, partition_id: int, *, from_offset: int = 0, limit: int = PAGE
    ) -> list[Segment]:
        """Segments that hold ``from_offset`` or anything after it, in order. Next page: last ``end_offset + 1``."""
        ...

    def stream_segments(self, topic: str, partition_id: int, *, from_offset: int = 0) -> AsyncIterator[Segment]: ...

    async def find_segment_for_offset(self, topic: str, partition_id: int, offset: int) -> Segment | None:
        """The segment that holds the offset. NotFound if the partition does not exist."""
        ...

    async def find_segment_for_timestamp(self, topic: str, partition_id: int, timestamp: int) -> Segment | None:
        """The first one, by offset, that may hold a record of that time or later."""
        ...

    async def get_object_segments(self, s3_bucket: str, s3_key: str) -> list[Segment]:
        """What is live of an object, by byte offset."""
        ...

    async def delete_segments_before(
        self, topic: str, partition_id: int, offset: int, *, limit: int | None = None
    ) -> int:
        """Deletes segments that end below the offset, the first ``limit`` of them; answers how many.

        The watermark stays. An object that has lost its last segment becomes an upload intent: whoever cleans stale
        ones deletes it.
        """
        ...

    async def get_producer_sequences(self, keys: Sequence[tuple[str, int, str]]) -> list[ProducerSequence]:
        """Of topic, partition and producer: those that are known, in that order."""
        ...

    async def forget_producers(self, idle_ms: int, *, limit: int = PAGE) -> int:
        """Those that have written nothing to a partition for so long; answers how many. What they repeat after that
        would be written again.
        """
        ...


class ConsumerGroups(Protocol):
    async def ensure_consumer_group(self, group_id: str) -> ConsumerGroup:
        """Creates it if needed."""
        ...

    async def commit_offset(
        self, group_id: str, topic: str, partition_id: int, offset: int, metadata: str | None = None
    ) -> None:
        """`commit_offsets` of one."""
        ...

    async def commit_offsets(
        self, group_id: str, offsets: Sequence[OffsetDraft], *, leases: Sequence[GroupLease] = ()
    ) -> None:
        """The last commit wins, also when it goes back. Of several for one partition in a call, the last wins.

        Fenced, and nothing written, if some of the ``leases`` are not the current ones (whether one expired does not
        matter as long as nobody took it over); ``names`` lists all of them as ``topic/partition``.
        """
        ...  # fmt: skip

    async def reset_offsets(self, group_id: str, offsets: Sequence[OffsetDraft]) -> list[OffsetDraft]:
        """Commits offsets that somebody chose, not read, and returns them as committed, by topic and partition.

        Invalid, and nothing written, if one is beyond its partition's end: what is written between would never be read.
        An offset below the first retained one becomes that one. The end itself is allowed. The group is created if
        needed; of several for one partition in a call, the last wins.
        """
        ...

    async def get_committed_offset(self, group_id: str, topic: str, partition_id: int) -> ConsumerOffset | None: ...

    async def get_consumer_offsets(self, group_id: str) -> list[ConsumerOffset]: ...

    async def delete_consumer_group(self, group_id: str) -> None:
        """With its committed offsets and leases."""
        ...

    async def acquire_group_leases(
        self, group_id: str, partitions: Sequence[tuple[str, int]], member_id: str, ttl_ms: int
    ) -> list[GroupLease]:
        """Takes those that are free, expired or the member's own, with a new epoch each, and answers them; the others
        are left as they are. A member is an agent. What was committed under an earlier epoch is seen from then on.
        """
        ...

    async def renew_group_leases(self, leases: Sequence[GroupLease], ttl_ms: int) -> list[GroupLease]:
        """Renews those that still stand and answers them."""
        ...

    async def release_group_lease(self, lease: GroupLease) -> bool:
        """False if it was no longer held in that epoch."""
        ...

    async def list_group_leases(self, group_id: str, *, topic: str | None = None) -> list[GroupLease]:
        """By topic and partition id, released ones too."""
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
        """A known id is registered anew: the agent has restarted."""
        ...  # fmt: skip

    async def heartbeat(self, agent_id: str) -> None: ...

    async def get_agent(self, agent_id: str) -> Agent | None: ...

    async def list_agents(self, *, alive_within_ms: int | None = None, group: str | None = None) -> list[Agent]:
        """All, or those whose last heartbeat is at most so long ago."""
        ...

    async def deregister_agent(self, agent_id: str) -> None:
        """Its leases are free at once; their epochs stay."""
        ...

    async def acquire_partition_lease(
        self, topic: str, partition_id: int, agent_id: str, ttl_ms: int
    ) -> PartitionLease:
        """Takes a lease that is free, expired or the agent's own, with a new epoch. Conflict names the holder."""
        ...

    async def acquire_partition_leases(
        self, partitions: Sequence[tuple[str, int]], agent_id: str, ttl_ms: int
    ) -> list[PartitionLease]:
        """Takes those that can be had and answers them; the others are left as they are."""
        ...

    async def renew_partition_lease(self, lease: PartitionLease, ttl_ms: int) -> PartitionLease:
        """Same epoch, later expiry. Fenced if another epoch has begun."""
        ...

    async def renew_partition_leases(self, leases: Sequence[PartitionLease], ttl_ms: int) -> list[PartitionLease]:
        """Renews those that still stand and answers them."""
        ...

    async def release_partition_lease(self, lease: PartitionLease) -> bool:
        """False if it was no longer held in that epoch."""
        ...

    async def get_partition_lease(self, topic: str, partition_id: int) -> PartitionLease | None: ...

    async def list_partition_leases(
        self, *, topic: str | None = None, agent_id: str | None = None
    ) -> list[PartitionLease]: ...


class Tables(Protocol):
    async def create_table(self, database: str, name: str, location: str, draft: TableDraft) -> LakeTable:
        """The table with schema version 1."""
        ...

    async def get_table(self, database: str, name: str) -> LakeTable | None: ...

    async def get_table_by_id(self, table_id: int) -> LakeTable | None: ...

    async def list_tables(self, database: str | None = None) -> list[LakeTable]: ...

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
        """Changes what is given. Properties replace those of the current schema version.

        A new name or location touches the current schema version too, so that its followers learn of it.
        """
        ...  # fmt: skip

    async def drop_table(self, table_id: int, *, purge: bool = False) -> None:
        """With everything that belongs to it. ``purge`` puts its files on the list of files awaiting deletion."""
        ...

    async def add_schema_version(self, table_id: int, draft: TableDraft, *, expected: int) -> TableMetadata:
        """Version ``expected + 1``. Conflict if the current version is not ``expected``."""
        ...

    async def get_table_metadata(self, table_id: int, schema_version: int | None = None) -> TableMetadata | None:
        """The current version unless another is named."""
        ...

    async def list_table_metadata(self, table_id: int) -> list[TableMetadata]: ...


class Files(Protocol):
    """Each verb that changes files changes the statistics of table and partitions in the same transaction."""

    async def add_files(
        self,
        table_id: int,
        files: Sequence[FileDraft],
        *,
        operation: FileOperation = "insert",
        operation_id: str | None = None,
        intents_of: str | None = None,
    ) -> list[TableFile]:
        """AlreadyExists if the table has a file of that path. Upload intents for these paths are completed.

        With ``intents_of`` they must be this owner's, or it is a Conflict that names the others: somebody has taken
        them over, and may have deleted the files.
        """
        ...  # fmt: skip

    async def register_files(self, registrations: Sequence[Registration]) -> list[list[TableFile]]:
        """`add_files` of several, of any tables, in one transaction: all of them or none.

        Each registration's ``advances`` move committed offsets with it, also if it has no files. OffsetsMoved, with
        ``names`` as ``topic/partition``: a group is not where an advance expects it, somebody has gone on meanwhile.
        NotFound: the group, the topic or the partition does not exist.
        """
        ...

    async def remove_files(self, table_id: int, files: Sequence[TableFile], *, reason: str) -> None:
        """`files` as they were read. They go to the list of files awaiting deletion.

        Conflict names those that are gone or changed since.
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
    ) -> list[TableFile]:
        """`old`, as they were read, for `new`. Conflict names the old ones that are gone or changed since.

        A new file whose path awaits deletion is taken off that list. A rollback's new files must all be on it: Conflict
        names those that are not, which somebody may be deleting. ``intents_of`` as in `add_files`.
        The compaction of this ``operation_id``, if there is one, is ``done`` in the same transaction.
        """
        ...  # fmt: skip

    async def get_files(self, table_id: int, paths: Sequence[str]) -> list[TableFile]:
        """Those of the paths that are live."""
        ...

    async def list_files(
        self, table_id: int, *, partition_path: str | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableFile]:
        """By id, after the id ``after``."""
        ...

    def stream_files(self, table_id: int, *, partition_path: str | None = None) -> AsyncIterator[TableFile]: ...

    async def get_statistics(self, table_id: int) -> list[TableStats]:
        """By partition path. A partition that has lost its last file stays, with zeros."""
        ...

    async def recount_statistics(self, table_id: int) -> LakeTable:
        """Recomputes table and partition statistics from the files."""
        ...

    async def record_intents(self, paths: Sequence[str], *, purpose: str, owner: str) -> None:
        """Before an upload: these objects may come to exist. A path that has an intent keeps the newer one."""
        ...

    async def renew_intents(
        self, paths: Sequence[str] | None, *, owner: str, new_owner: str | None = None
    ) -> list[str]:
        """Those that are still ``owner``'s become as if recorded now (by ``new_owner``); answers their paths.

        None stands for all of the owner's. The others have been registered, or taken over by somebody who may have
        deleted their objects.
        """
        ...

    async def complete_intents(self, paths: Sequence[str]) -> None:
        """The objects are registered, or have been removed again."""
        ...

    async def list_stale_intents(self, older_than_ms: int, *, after: str = "", limit: int = PAGE) -> list[UploadIntent]:
        """Recorded at least so long ago, by path."""
        ...

    async def claim_stale_intents(self, older_than_ms: int, *, owner: str, limit: int = PAGE) -> list[UploadIntent]:
        """Takes over intents recorded at least so long ago, as if recorded now, and answers them by path.

        From then on nobody else can register their objects, so the new owner may delete them.
        """
        ...

    async def list_files_awaiting_deletion(
        self, *, table_id: int | None = None, removed_before: int | None = None, after: int = 0, limit: int = PAGE
    ) -> list[FileAwaitingDeletion]:
        """By id, after the id ``after``."""
        ...

    async def claim_files_awaiting_deletion(
        self, ids: Sequence[int], *, purpose: str, owner: str
    ) -> list[FileAwaitingDeletion]:
        """Takes those that are still there off the list, and records upload intents of the owner for their paths.

        From then on no rollback can bring them back, so the owner may delete them. If it dies, whoever cleans stale
        intents does.
        """
        ...

    async def forget_deleted_files(self, ids: Sequence[int]) -> None:
        """They have been deleted from storage."""
        ...


class Snapshots(Protocol):
    async def request_snapshot(
        self, table_id: int, *, trigger: SnapshotTrigger = "manual", tag: str | None = None, reason: str | None = None
    ) -> TableSnapshot:
        """A row of status ``requested``, which the snapshotter answers. AlreadyExists if the tag is taken."""
        ...

    async def record_snapshot(self, table_id: int, draft: SnapshotDraft) -> TableSnapshot: ...

    async def update_snapshot(self, row_id: int, draft: SnapshotDraft) -> TableSnapshot:
        """Replaces everything that the draft holds."""
        ...

    async def list_snapshots(
        self, table_id: int, *, status: SnapshotStatus | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableSnapshot]:
        """By row id, after ``after``."""
        ...


class Compactions(Protocol):
    """The compactor's journal: what was decided about each partition, who is at work, and what came of it.

    A partition has at most one row that is ``waiting`` or ``declined``, and at most one that is ``running``.
    """

    async def record_compactions(self, drafts: Sequence[CompactionDraft]) -> None:
        """What is decided about these partitions now, instead of what was decided before and not begun.

        The same decision again (status, rule and reason) changes nothing. Of several for one partition, the last wins.
        """
        ...

    async def begin_compaction(
        self, draft: CompactionDraft, *, operation_id: str, owner: str, stale_after_ms: int
    ) -> Compaction:
        """A row of status ``running``: the partition's waiting or declined one, or a new one.

        Conflict names who is at work on the partition already, unless that one has given no sign of life for so long:
        then it is ``aborted``, and gives way. Repeated with the same ``operation_id``, it answers the same row.
        """
        ...

    async def renew_compactions(self, ids: Sequence[int], *, owner: str) -> list[Compaction]:
        """A sign of life for those that are still running and ``owner``'s; answers them, ``cancel_requested`` and all.

        The others have ended, or have been taken for dead.
        """
        ...

    async def finish_compaction(self, row_id: int, outcome: CompactionOutcome, *, owner: str) -> Compaction:
        """The end of one that ``owner`` has begun, also if it was taken for dead meanwhile: what happened, happened.

        Conflict if it ended otherwise. A repetition may add what it knows.
        """
        ...

    async def request_cancel(self, table_id: int, *, partition_path: str | None = None) -> list[Compaction]:
        """Those of the table that wait are ``cancelled``, those that run learn of it at their next renewal."""
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
        """Newest decision first; of any status unless some are named. Next page: ``decided_at, id`` of the last."""
        ...

    async def get_savings(self, *, table_id: int | None = None) -> list[Savings]:
        """Over the rows that are ``done`` and kept, by table id."""
        ...

    async def prune_compactions(
        self, older_than_ms: int, *, statuses: Sequence[CompactionStatus] = ("waiting", "declined"), limit: int = PAGE
    ) -> int:
        """Deletes rows of these statuses that nobody has touched for so long; answers how many. Never a running one."""
        ...


class DaemonState(Protocol):
    """What the daemon keeps of itself. Not published: the daemon does not tail its own notes."""

    async def take_daemon_lease(
        self, name: str, holder: str, ttl_ms: int, *, dead: DaemonLease | None = None
    ) -> DaemonLease | None:
        """Leadership with a new epoch, if it is free, expired or the holder's own; None if another leads.

        ``dead``: a lease that the caller has seen unchanged for several of its terms. If it is still the same, it is
        taken over, whatever the wall clock says.
        """
        ...

    async def renew_daemon_lease(self, lease: DaemonLease, ttl_ms: int) -> DaemonLease:
        """Fenced if another epoch has begun."""
        ...

    async def release_daemon_lease(self, lease: DaemonLease) -> bool: ...

    async def get_daemon_lease(self, name: str) -> DaemonLease | None: ...

    async def read_ledger(self) -> list[LedgerEntry]: ...

    async def write_ledger(self, entries: Sequence[LedgerEntry], lease: DaemonLease) -> None:
        """Fenced, and nothing written, if the lease is no longer the current one."""
        ...

    async def forget_component(self, component: str) -> None: ...

    async def get_source_identity(self, name: str) -> SourceIdentity | None: ...

    async def record_source_identity(self, name: str, identity: str) -> None: ...

    async def ensure_source_identity(self, name: str, identity: str) -> SourceIdentity:
        """Records it unless there is one; returns the one that is recorded, the same to all that call at once."""
        ...


class ConsistentRead(Protocol):
    """One consistent snapshot of the whole registry, and its exact place in the stream of changes."""

    @property
    def visibility(self) -> SnapshotVisibility:
        """Unavailable on a standby server: it can be read from, but does not know which transactions are running."""
        ...

    async def count(self, kind: type[Row]) -> int: ...

    def rows(self, kind: type[R], *, page: int = PAGE, table_id: int | None = None) -> AsyncIterator[list[R]]:
        """All rows of a table in pages by primary key. Memory is bounded by the page.

        ``table_id``: only those that belong to this table of the lake.
        """
        ...


class BulkLoad(Protocol):
    """An empty registry being filled, all or nothing."""

    async def add(self, rows: Sequence[Row]) -> None:
        """Rows as they are, ids included; parents before children."""
        ...

    async def count(self, kind: type[Row]) -> int: ...


class MetadataStore(
    Topics, Segments, ConsumerGroups, Agents, Tables, Files, Snapshots, Compactions, DaemonState, Protocol
):
    async def time(self) -> DatabaseTime:
        """What time it is as far as the database knows, for comparison with one's own clock."""
        ...

    async def position(self) -> Position:
        """Not below any commit that was acknowledged before this call: what a reader passes as ``at_least``."""
        ...

    def consistent_read(self) -> AbstractAsyncContextManager[ConsistentRead]:
        """Holds a snapshot open for as long as the block runs; writers are not blocked."""
        ...

    def load(self) -> AbstractAsyncContextManager[BulkLoad]:
        """Commits at the end of the block, rolls back if it raises. Conflict if the registry is not empty."""
        ...

    async def close(self) -> None: ...
