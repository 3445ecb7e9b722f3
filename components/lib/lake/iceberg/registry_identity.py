"""The registry's identity: it distinguishes its Iceberg tables from those of other registries in the same catalog."""

from __future__ import annotations

from uuid import uuid4

from registry.contract import MetadataStore
from registry.models import LAKE_IDENTITY


async def registry_identity(store: MetadataStore) -> str:
    """Returns the identity, after recording one if there is none. Concurrent callers get the same one."""
    found = await store.get_source_identity(LAKE_IDENTITY)
    if found is None:
        found = await store.ensure_source_identity(LAKE_IDENTITY, uuid4().hex)
    return found.identity


async def recorded_identity(store: MetadataStore) -> str:
    """Returns the identity without writing. If there is none, returns a random one, which no Iceberg table has."""
    found = await store.get_source_identity(LAKE_IDENTITY)
    return uuid4().hex if found is None else found.identity
