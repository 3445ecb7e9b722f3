"""What writers have left behind: objects that were announced and never registered."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import msgspec
import structlog

from components.lib.lake.registration.upload_intents import table_of
from components.lib.lake.storage.objects import StorageError
from components.lib.lake.storage.roots import Roots, known_roots, refusals
from registry.contract import PAGE, MetadataStore
from registry.models import UploadIntent

log = structlog.get_logger(__name__)

_NEGLECTED = 4
"""Times the threshold: a cleaner at work has long been there."""


class Cleaned(msgspec.Struct, frozen=True):
    """Paths by what became of them."""

    deleted: list[str]  # in a dry run: those that would be
    kept: list[str]  # registered after all
    failed: list[str]  # can't be deleted now; their intents stay, for the next time
    refused: dict[str, str] = {}  # must not be deleted, with the reason; their intents stay, for a person


class Deleting(Protocol):
    """As far as `Objects` is needed here."""

    @property
    def roots(self) -> Roots: ...

    async def delete_many(self, uris: Sequence[str], *, roots: Roots | None = None) -> None: ...


async def clean_intents(
    store: MetadataStore, objects: Deleting, older_than_ms: int, owner: str, *, dry_run: bool = False
) -> Cleaned:
    """Take over the stale intents, so that nobody can register their objects any more; then delete those.

    Deletes only below the roots that the settings and the registry name (`lake.storage.roots`); an intent for anything
    else is refused and stays. Safe to interrupt at any point and to run in several processes. ``older_than_ms``
    must exceed the interval at which writers renew their intents by far: a writer that sleeps longer loses its insert,
    but never a registered file.
    """
    done = Cleaned([], [], [], {})
    if dry_run:
        after = ""
        while page := await store.list_stale_intents(older_than_ms, after=after):
            await _sort(store, objects, page, done)
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


async def _clean(store: MetadataStore, objects: Deleting, claimed: list[UploadIntent], done: Cleaned) -> None:
    found = Cleaned([], [], [], {})
    roots = await _sort(store, objects, claimed, found)
    for path, reason in found.refused.items():
        log.warning("an upload intent names a file that must not be deleted", path=path, reason=reason)
    done.refused.update(found.refused)
    try:
        await objects.delete_many(found.deleted, roots=roots)
    except StorageError:
        gone = []
        for path in found.deleted:  # one bad place must not keep the others
            try:
                await objects.delete_many([path], roots=roots)
            except StorageError as error:
                log.warning("an object that nobody owns can't be deleted", path=path, error=str(error))
                done.failed.append(path)
            else:
                gone.append(path)
        found = Cleaned(gone, found.kept, [])
    await store.complete_intents([*found.deleted, *found.kept])
    done.deleted.extend(found.deleted)
    done.kept.extend(found.kept)


async def _sort(store: MetadataStore, objects: Deleting, intents: Sequence[UploadIntent], done: Cleaned) -> Roots:
    """An intent for a registered file is one too many, not a reason to delete it. Returns where one may delete."""
    by_table: dict[int | None, list[str]] = defaultdict(list)
    for intent in intents:
        by_table[table_of(intent.purpose)].append(intent.path)
    unregistered: list[str] = []
    for table_id, paths in by_table.items():
        live = set() if table_id is None else {file.file_path for file in await store.get_files(table_id, paths)}
        for path in paths:
            (done.kept if path in live else unregistered).append(path)
    roots = await known_roots(store, objects.roots, above=unregistered)
    done.refused.update(await asyncio.to_thread(refusals, roots, unregistered))
    done.deleted.extend(path for path in unregistered if path not in done.refused)
    return roots


async def warn_if_neglected(store: MetadataStore, stale_after_s: float) -> None:
    """For components whose files the cleaner deletes: says so if none is at work."""
    left = await store.list_stale_intents(int(stale_after_s * _NEGLECTED * 1000), limit=1)
    if left:
        log.warning("stale upload intents are not cleaned: is metadata_orchestrator subscribed?", oldest=left[0].path)
