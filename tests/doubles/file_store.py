"""An in-memory store of files whose results a test can delay, lose or replace by errors."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import cast

from registry.contract import PAGE, MetadataStore
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound, Unavailable
from registry.forwarding import ForwardingStore
from registry.inputs import Registration
from registry.json_text import to_json_text
from registry.models import FileAwaitingDeletion, TableFile


class Answer(StrEnum):
    """The outcome of a call of `register_files`."""

    GOOD = "good"
    LOST_BEFORE = "unavailable, and nothing was written"
    LOST_AFTER = "unavailable, although it was written"
    BROKEN = "an error that is none of the registry's"


class FileStore(ForwardingStore):
    """Tables 1 and 2 exist. `script` lists the outcomes of the next calls; later calls succeed.

    `calls` lists the paths of each call. A cleared `gate` delays calls before anything is written; `on_call` is called
    synchronously when a call arrives.
    """

    def __init__(self) -> None:
        super().__init__(cast("MetadataStore", None))
        self.files: dict[tuple[int, str], TableFile] = {}
        self.awaiting: list[FileAwaitingDeletion] = []
        self.intents: dict[str, str] = {}
        self.script: deque[Answer] = deque()
        self.reads: deque[Answer] = deque()
        self.calls: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.on_call: Callable[[], object] = lambda: None
        self.called = asyncio.Condition()
        self._ids = 0

    async def reached(self, calls: int) -> None:
        """Waits for so many calls, the last of which may wait at the gate."""
        async with self.called:
            await self.called.wait_for(lambda: len(self.calls) >= calls)

    async def register_files(self, registrations: Sequence[Registration]) -> list[list[TableFile]]:
        self.calls.append([draft.file_path for part in registrations for draft in part.files])
        self.on_call()
        async with self.called:
            self.called.notify_all()
        await self.gate.wait()
        answer = self.script.popleft() if self.script else Answer.GOOD
        if answer is Answer.LOST_BEFORE:
            raise Unavailable("the connection was lost")
        if answer is Answer.BROKEN:
            raise TypeError("not a draft")
        self._check(registrations)
        rows = [[self._add(part, number) for number in range(len(part.files))] for part in registrations]
        if answer is Answer.LOST_AFTER:
            raise Unavailable("the connection was lost")
        return rows

    def _check(self, registrations: Sequence[Registration]) -> None:
        paths = [draft.file_path for part in registrations for draft in part.files]
        if len(set(paths)) < len(paths):
            raise Invalid("file_path", paths, "appears twice in one call")
        for part in registrations:
            if part.table_id not in (1, 2):
                raise NotFound(f"table {part.table_id} does not exist")
            if any((part.table_id, draft.file_path) in self.files for draft in part.files):
                raise AlreadyExists("a file with this path exists")
            lost = [draft.file_path for draft in part.files if self.intents.get(draft.file_path) != part.intents_of]
            if part.intents_of is not None and lost:
                raise Conflict("no longer has the intents", lost)

    def _add(self, part: Registration, number: int) -> TableFile:
        draft = part.files[number]
        self._ids += 1
        row = TableFile(
            id=self._ids, table_id=part.table_id, file_name=draft.file_name, file_path=draft.file_path,
            file_size=draft.file_size, file_type=draft.file_type, partition_path=draft.partition_path,
            row_count=draft.row_count, checksum=draft.checksum, is_compressed=draft.is_compressed,
            schema_version=draft.schema_version, column_stats=draft.column_stats, operation=part.operation,
            operation_id=part.operation_id, created_at=0, modified_at=0,
        )  # fmt: skip
        self.files[part.table_id, draft.file_path] = row
        self.intents.pop(draft.file_path, None)
        return row

    def remove(self, table_id: int, path: str) -> None:
        """Removes a file, as a compaction does."""
        file = self.files.pop((table_id, path))
        number = len(self.awaiting) + 1
        self.awaiting.append(
            FileAwaitingDeletion(number, table_id, path, file.file_size, "compaction x", to_json_text(file), 0)
        )

    async def get_files(self, table_id: int, paths: Sequence[str]) -> list[TableFile]:
        if self.reads and self.reads.popleft() is not Answer.GOOD:
            raise Unavailable("the connection was lost")
        return [file for path in paths if (file := self.files.get((table_id, path))) is not None]

    async def list_files_awaiting_deletion(
        self, *, table_id: int | None = None, removed_before: int | None = None, after: int = 0, limit: int = PAGE
    ) -> list[FileAwaitingDeletion]:
        return [part for part in self.awaiting if part.table_id == table_id and part.id > after][:limit]
