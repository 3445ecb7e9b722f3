"""What a failed writer takes back: its objects, and then the intents that announced them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import structlog

from components.lib.lake.storage.objects import Objects, StorageError
from components.lib.lake.storage.roots import known_roots
from registry.contract import MetadataStore
from registry.errors import RegistryError

log = structlog.get_logger(__name__)


async def remove(store: MetadataStore, objects: Objects, uris: Sequence[str], doubtful: Collection[str] = ()) -> None:
    """Objects that can't be registered any more, then their intents. What can't be removed now keeps its intent, by
    which the cleaner finds it; so do doubtful ones, which may still come to exist.
    """
    if not uris:
        return
    try:
        await objects.delete_many(uris, roots=await known_roots(store, objects.roots, above=uris))
        await store.complete_intents([uri for uri in uris if uri not in doubtful])
    except (StorageError, RegistryError) as error:
        log.warning("files of a failed write are left to the cleaner", files=len(uris), error=str(error))
