"""Rolls a table back to a snapshot: the registry's files become the snapshot's in one transaction; Iceberg follows.

The schema is not rolled back: older files are readable under the newest one. Rows that are inserted during the rollback
stay, as if they had been inserted after it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence

import msgspec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from astha.errors import AsthaError
from components.lib.lake.file_set_digest import LiveFile
from components.lib.lake.iceberg import IcebergTables, LiveDeleteFile, delete_files, live_files
from components.lib.lake.storage.objects import Objects
from components.snapshotter.snapshot_requests import BlockingCall
from registry.contract import MetadataStore
from registry.errors import AlreadyExists, Conflict
from registry.inputs import FileDraft
from registry.json_text import parse_json_as
from registry.models import LakeTable, TableDeleteFile, TableFile

_ATTEMPTS = 5
_MAX_CONCURRENT = 32
_MAX_SHOWN = 3
_NO_LIMIT = 1 << 31


class CantRollBack(AsthaError):
    """Nothing was changed. The message names the snapshot, the reason and the first files."""


class RollbackPlan(msgspec.Struct, frozen=True):
    """The files to remove from the table, and those to restore. Rows that delete files delete count as rows."""

    table: LakeTable
    snapshot_id: int
    removed: list[TableFile]
    restored: list[FileDraft]
    kept_deletes: list[TableDeleteFile] = []
    removed_deletes: list[TableDeleteFile] = []  # of other engines, after the snapshot

    @property
    def rows(self) -> int:
        """Returns the change of the table's row count."""
        return sum(draft.row_count for draft in self.restored) - sum(file.row_count for file in self.removed)


class Rollback:
    def __init__(self, store: MetadataStore, tables: IcebergTables, call: BlockingCall, objects: Objects) -> None:
        self._store = store
        self._tables = tables
        self._call = call
        self._objects = objects

    async def plan(self, table: LakeTable, name: str) -> RollbackPlan:
        """`name` is a tag or a snapshot id. Raises `CantRollBack` if a file of the snapshot cannot be restored."""
        snapshot_id, wanted, deletes = await self._call(lambda: self._snapshot(table, name))
        removed: list[TableFile] = []
        # In one page, for consistency: a swap between two pages would show both its inputs and its outputs.
        for file in await self._store.list_files(table.id, limit=_NO_LIMIT):
            if wanted.get(file.file_path) == LiveFile.of(file):
                del wanted[file.file_path]
            else:
                removed.append(file)
        restored = await self._restored(table, name, wanted)
        await self._require_in_storage(name, restored)
        kept, after = await self._deletes(table, deletes)
        _require_applied(name, deletes, kept, restored)
        return RollbackPlan(table, snapshot_id, removed, restored, kept, after)

    async def roll_back(self, table: LakeTable, name: str) -> RollbackPlan:
        """Plans and performs; plans again if files of the plan have changed. Returns the plan that was performed."""
        for _ in range(_ATTEMPTS):
            plan = await self.plan(table, name)
            try:
                await self.perform(plan)
            except (Conflict, AlreadyExists) as conflict:
                last = conflict
                continue
            return plan
        raise CantRollBack(f"{name}: the table's files changed during each of {_ATTEMPTS} attempts: {last}")

    async def perform(self, plan: RollbackPlan) -> None:
        """Raises `Conflict`, without an effect, if a file of the plan has changed or was deleted since."""
        await self._store.swap_files(
            plan.table.id,
            plan.removed,
            plan.restored,
            operation="rollback",
            operation_id=f"rollback-{plan.snapshot_id}-{secrets.token_hex(4)}",
            seen_deletes=plan.kept_deletes,
            removed_deletes=plan.removed_deletes,
        )

    def _snapshot(self, table: LakeTable, name: str) -> tuple[int, dict[str, LiveFile], Counter[LiveDeleteFile]]:
        loaded = self._tables.load(table)
        if loaded is None:
            raise CantRollBack(f"{table.database}.{table.name} has no Iceberg table: the daemon creates it")
        snapshot = find_snapshot(loaded, name)
        files = {file.path: file for file in live_files(loaded, snapshot)}
        return snapshot.snapshot_id, files, delete_files(loaded, snapshot)

    async def _deletes(
        self, table: LakeTable, wanted: Counter[LiveDeleteFile]
    ) -> tuple[list[TableDeleteFile], list[TableDeleteFile]]:
        """Returns the table's delete files that the snapshot has, and those that it does not have."""
        kept: list[TableDeleteFile] = []
        others: list[TableDeleteFile] = []
        after = 0
        while page := await self._store.list_delete_files(table.id, after=after):
            for file in page:
                (kept if LiveDeleteFile(file.file_path, file.row_count) in wanted else others).append(file)
            after = page[-1].id
        return kept, others

    async def _restored(self, table: LakeTable, name: str, wanted: dict[str, LiveFile]) -> list[FileDraft]:
        missing, after = dict(wanted), 0
        drafts: list[FileDraft] = []
        while missing:
            page = await self._store.list_files_awaiting_deletion(table_id=table.id, after=after)
            if not page:
                break
            after = page[-1].id
            for listed in page:
                if listed.file_path in missing:
                    file = parse_json_as(listed.file, TableFile)
                    if missing[listed.file_path] == LiveFile.of(file):
                        drafts.append(draft_of(file))
                        del missing[listed.file_path]
        if missing:
            raise CantRollBack(
                f"{name}: {len(missing)} of its files are deleted, or unknown to the registry: {_shown(list(missing))}"
            )
        return drafts

    async def _require_in_storage(self, name: str, drafts: Sequence[FileDraft]) -> None:
        gate = asyncio.Semaphore(_MAX_CONCURRENT)

        async def is_stored(draft: FileDraft) -> bool:
            async with gate:
                return await self._objects.size(draft.file_path) == draft.file_size

        found = await asyncio.gather(*(is_stored(draft) for draft in drafts))
        gone = [draft.file_path for draft, there in zip(drafts, found, strict=True) if not there]
        if gone:
            raise CantRollBack(f"{name}: {len(gone)} of its files are missing in storage, or changed: {_shown(gone)}")


def find_snapshot(table: Table, name: str) -> Snapshot:
    """Finds it by tag, also one of another tool, or by id. Raises `CantRollBack` if there is none."""
    metadata = table.metadata
    ref = metadata.refs.get(name)
    wanted = ref.snapshot_id if ref is not None else int(name) if name.isascii() and name.isdigit() else None
    found = None if wanted is None else metadata.snapshot_by_id(wanted)
    if found is None:
        tags = sorted(known for known, ref in metadata.refs.items() if ref.snapshot_ref_type == "tag")
        raise CantRollBack(
            f"{'.'.join(table.name())} has no snapshot {name!r}, or it has expired; its tags are "
            f"{', '.join(tags) if tags else 'none'}"
        )
    return found


def draft_of(file: TableFile) -> FileDraft:
    """Returns a draft with all of the file's properties."""
    return FileDraft(
        file_path=file.file_path,
        file_size=file.file_size,
        row_count=file.row_count,
        schema_version=file.schema_version,
        partition_path=file.partition_path,
        file_type=file.file_type,
        checksum=file.checksum,
        is_compressed=file.is_compressed,
        column_stats=file.column_stats,
    )


def _require_applied(
    name: str, wanted: Counter[LiveDeleteFile], kept: Sequence[TableDeleteFile], restored: Sequence[FileDraft]
) -> None:
    """Raises `CantRollBack` if rows that were deleted in the snapshot would come back.

    A restored file becomes newer than all delete files, so that these no longer apply to it.
    """
    way_out = "let an engine roll the table back through the catalog (in Spark: rollback_to_snapshot)"
    lost = wanted - Counter(LiveDeleteFile(file.file_path, file.row_count) for file in kept)
    if lost:
        gone = [file.path for file in lost]
        raise CantRollBack(f"{name}: {len(gone)} of its delete files are no longer there: {_shown(gone)}: {way_out}")
    paths, partitions = {draft.file_path for draft in restored}, {draft.partition_path for draft in restored}
    for file in kept:
        if file.content == "equality" or (file.referenced_data_file is None and file.partition_path == ""):
            applies = bool(restored)
        elif file.referenced_data_file is None:
            applies = file.partition_path in partitions
        else:
            applies = file.referenced_data_file in paths
        if applies:
            raise CantRollBack(f"{name}: {file.file_path} deletes rows of a file that has to be restored: {way_out}")


def _shown(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _MAX_SHOWN} more" if len(paths) > _MAX_SHOWN else ""
    return ", ".join(paths[:_MAX_SHOWN]) + more
