"""Idempotency keys: a request that is repeated with its key takes effect once.

The key is recorded in the transaction that makes the change, so both happen or neither. A repetition is not executed;
its response shows the current state, as the protocol allows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import TypeVar
from uuid import UUID

from components.commands.catalog.errors import BadRequest, Unprocessable
from registry.contract import MetadataStore
from registry.errors import AlreadyCommitted
from registry.models import CatalogRequest

T = TypeVar("T")

LIFETIME = "PT23H"
"""How long a client may repeat a key; the registry keeps them longer."""

_DIGEST_BYTES = 16


def request_of(key: str | None, method: str, path: str, body: bytes) -> CatalogRequest | None:
    """Returns the record of a request with a key. Raises BadRequest if the key is not a UUID."""
    if key is None:
        return None
    try:
        parsed = UUID(key)
    except ValueError as error:
        raise BadRequest(f"Idempotency-Key must be a UUID, not {key[:40]!r}") from error
    digest = blake2b(f"{method} {path}\n".encode() + body, digest_size=_DIGEST_BYTES)
    return CatalogRequest(str(parsed), digest.hexdigest())


async def once(
    store: MetadataStore,
    request: CatalogRequest | None,
    execute: Callable[[], Awaitable[T]],
    repeated: Callable[[], Awaitable[T]],
) -> T:
    """Returns what `execute` does, or `repeated` if the request was executed before. Raises Unprocessable if its key
    was used for another request.
    """
    if request is None:
        return await execute()
    if await _is_repetition(store, request):
        return await repeated()
    try:
        return await execute()
    except AlreadyCommitted:  # the first one ended meanwhile
        await _is_repetition(store, request)
        return await repeated()


async def _is_repetition(store: MetadataStore, request: CatalogRequest) -> bool:
    found = await store.get_catalog_request(request.request_key)
    if found is not None and found.fingerprint != request.fingerprint:
        raise Unprocessable(f"the Idempotency-Key {request.request_key} was used for another request")
    return found is not None
