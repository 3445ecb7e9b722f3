"""What tells this registry's Iceberg tables from those of another registry in the same catalog."""

from __future__ import annotations

from uuid import uuid4

from registry.contract import MetadataStore
from registry.models import LAKE_IDENTITY


async def registry_identity(store: MetadataStore) -> str:
    """Reads it, or records one if the registry has none yet. All that begin at once get the same one."""
    found = await store.get_source_identity(LAKE_IDENTITY)
    if found is None:
        found = await store.ensure_source_identity(LAKE_IDENTITY, uuid4().hex)
    return found.identity


async def recorded_identity(store: MetadataStore) -> str:
    """For callers that only read: writes nothing. Of a registry that has none, one that no Iceberg table carries."""
    found = await store.get_source_identity(LAKE_IDENTITY)
    return uuid4().hex if found is None else found.identity
