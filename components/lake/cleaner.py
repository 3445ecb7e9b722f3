"""What writers have left behind: objects that were announced and never registered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import msgspec
import structlog

from components.lake.intents import table_of
from components.lake.objects import Objects, StorageError
from registry.contract import PAGE, Files
from registry.models import UploadIntent

log = structlog.get_logger(__name__)


class Cleaned(msgspec.Struct, frozen=True):
    """Paths by what became of them."""

    deleted: list[str]  # in a dry run: those that would be
    kept: list[str]  # registered after all
    failed: list[str]  # can't be deleted now; their intents stay, for the next time


class Deleting(Protocol):
    async def delete_many(self, uris: Sequence[str]) -> None: ...


async def clean_intents(
    store: Files, objects: Objects | Deleting, older_than_ms: int, owner: str, *, dry_run: bool = False
) -> Cleaned:
    """Take over the stale intents, so that nobody can register their objects any more; then delete those.

    Safe to interrupt at any point and to run in several processes. ``older_than_ms`` must exceed the time in which
    writers renew their intents by far: who sleeps longer loses its insert, but never a registered file.
    """
    done = Cleaned([], [], [])
    if dry_run:
        after = ""
        while page := await store.list_stale_intents(older_than_ms, after=after):
            await _sort(store, page, done)
            after = page[-1].path
        return done
    seen: set[str] = set()
    while True:
        claimed = await store.claim_stale_intents(older_than_ms, owner=owner, limit=PAGE)
        new = [intent for intent in claimed if intent.path not in seen]
        if not new:
            return done
        seen.update(intent.path for intent in new)
        await _clean(store, objects, new, done)


async def _clean(store: Files, objects: Objects | Deleting, claimed: list[UploadIntent], done: Cleaned) -> None:
    found = Cleaned([], [], [])
    await _sort(store, claimed, found)
    try:
        await objects.delete_many(found.deleted)
    except StorageError:
        gone = []
        for path in found.deleted:  # one bad place must not keep the others
            try:
                await objects.delete_many([path])
            except StorageError as error:
                log.warning("an object that nobody owns can't be deleted", path=path, error=str(error))
                done.failed.append(path)
            else:
                gone.append(path)
        found = Cleaned(gone, found.kept, [])
    await store.complete_intents([*found.deleted, *found.kept])
    done.deleted.extend(found.deleted)
    done.kept.extend(found.kept)


async def _sort(store: Files, intents: Sequence[UploadIntent], done: Cleaned) -> None:
    """An intent for a registered file is one too many, not a reason to delete it."""
    by_table: dict[int | None, list[str]] = defaultdict(list)
    for intent in intents:
        by_table[table_of(intent.purpose)].append(intent.path)
    for table_id, paths in by_table.items():
        live = set() if table_id is None else {file.file_path for file in await store.get_files(table_id, paths)}
        for path in paths:
            (done.kept if path in live else done.deleted).append(path)
