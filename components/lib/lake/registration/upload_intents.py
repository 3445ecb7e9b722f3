"""Upload intents: the registry's record of objects that a writer is about to create.

A writer records an intent before it creates an object; the registration of the object completes the intent. An object
that is never registered is found by its intent: its own writer removes it after a failure (`remove_uploads`), or the
cleaner does after a crash (`clean_intents`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec
import structlog

from components.lib.lake.storage.objects import Objects, StorageError
from components.lib.lake.storage.roots import Roots, known_roots, refusals
from registry.contract import PAGE, MetadataStore
from registry.errors import RegistryError
from registry.models import UploadIntent

log = structlog.get_logger(__name__)

_NOT_CLEANED_FACTOR = 4
"""Intents older than this many thresholds would be gone if a cleaner were running."""


def purpose_of(work: str, table_id: int) -> str:
    """Returns an intent's purpose. ``work`` is the writer's word: ``insert``, ``compaction``."""
    return f"{work} {table_id}"


def table_id_of(purpose: str) -> int | None:
    """Returns the table id in a purpose, or None if it has none: intents of streams, for example."""
    number = purpose.rpartition(" ")[2]
    return int(number) if number.isdecimal() else None


async def remove_uploads(
    store: MetadataStore, objects: Objects, uris: Sequence[str], unconfirmed: Collection[str] = ()
) -> None:
    """Deletes the objects of a failed write, then their intents.

    Objects that cannot be deleted now keep their intents, by which the cleaner finds them. So do ``unconfirmed``
    ones: a write without a response may still create the object.
    """
    if not uris:
        return
    try:
        await objects.delete_many(uris, roots=await known_roots(store, objects.roots, above=uris))
        await store.complete_intents([uri for uri in uris if uri not in unconfirmed])
    except (StorageError, RegistryError) as error:
        log.warning("files of a failed write left to the cleaner", files=len(uris), error=str(error))


class CleanupResult(msgspec.Struct, frozen=True):
    """Paths by what became of them."""

    deleted: list[str]  # in a dry run: those that would be
    kept: list[str]  # registered after all
    failed: list[str]  # cannot be deleted now; their intents stay for the next run
    refused: dict[str, str] = {}  # must not be deleted, with the reason; their intents stay for the operator


class ObjectDeleter(Protocol):
    """The part of `Objects` that the cleaner needs."""

    @property
    def roots(self) -> Roots: ...

    async def delete_many(self, uris: Sequence[str], *, roots: Roots | None = None) -> None: ...


async def clean_intents(
    store: MetadataStore, objects: ObjectDeleter, older_than_ms: int, owner: str, *, dry_run: bool = False
) -> CleanupResult:
    """Claims stale intents, so that their objects can no longer be registered, then deletes the objects.

    Deletes only below the roots that the settings and the registry name (`lake.storage.roots`); an intent for anything
    else is refused and stays. Safe to interrupt at any point and to run in several processes. ``older_than_ms``
    must exceed the interval at which writers renew their intents by far: a writer that sleeps longer loses its insert,
    but never a registered file.
    """
    result = CleanupResult([], [], [], {})
    if dry_run:
        after = ""
        while page := await store.list_stale_intents(older_than_ms, after=after):
            await _classify(store, objects, page, result)
            after = page[-1].path
        return result
    seen: set[str] = set()
    while True:
        claimed = await store.claim_stale_intents(older_than_ms, owner=owner, limit=PAGE)
        new = [intent for intent in claimed if intent.path not in seen]
        if not new:
            return result
        seen.update(intent.path for intent in new)
        await _clean(store, objects, new, result)


async def warn_if_not_cleaned(store: MetadataStore, stale_after_s: float) -> None:
    """Logs a warning if no cleaner seems to run. For components that rely on it to delete their objects."""
    stale = await store.list_stale_intents(int(stale_after_s * _NOT_CLEANED_FACTOR * 1000), limit=1)
    if stale:
        log.warning("stale upload intents are not cleaned: is metadata_orchestrator subscribed?", oldest=stale[0].path)


async def _clean(
    store: MetadataStore, objects: ObjectDeleter, claimed: list[UploadIntent], result: CleanupResult
) -> None:
    found = CleanupResult([], [], [], {})
    roots = await _classify(store, objects, claimed, found)
    for path, reason in found.refused.items():
        log.warning("upload intent names a file that must not be deleted", path=path, reason=reason)
    result.refused.update(found.refused)
    try:
        await objects.delete_many(found.deleted, roots=roots)
    except StorageError:
        deleted = []
        for path in found.deleted:  # one that fails must not keep the others
            try:
                await objects.delete_many([path], roots=roots)
            except StorageError as error:
                log.warning("unregistered object could not be deleted", path=path, error=str(error))
                result.failed.append(path)
            else:
                deleted.append(path)
        found = CleanupResult(deleted, found.kept, [])
    await store.complete_intents([*found.deleted, *found.kept])
    result.deleted.extend(found.deleted)
    result.kept.extend(found.kept)


async def _classify(
    store: MetadataStore, objects: ObjectDeleter, intents: Sequence[UploadIntent], result: CleanupResult
) -> Roots:
    """Adds each path to `kept` (an intent for a registered file is superfluous), `refused` or `deleted`.

    Returns the roots below which files may be deleted.
    """
    by_table: dict[int | None, list[str]] = defaultdict(list)
    for intent in intents:
        by_table[table_id_of(intent.purpose)].append(intent.path)
    unregistered: list[str] = []
    for table_id, paths in by_table.items():
        live = set() if table_id is None else {file.file_path for file in await store.get_files(table_id, paths)}
        for path in paths:
            (result.kept if path in live else unregistered).append(path)
    roots = await known_roots(store, objects.roots, above=unregistered)
    result.refused.update(await asyncio.to_thread(refusals, roots, unregistered))
    result.deleted.extend(path for path in unregistered if path not in result.refused)
    return roots
