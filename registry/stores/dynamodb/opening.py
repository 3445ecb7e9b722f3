"""Opens a registry by a URL: ``dynamodb://region/table``, with ``?endpoint=`` for DynamoDB Local.

The commands do not take this URL yet, because the daemon has no source for it (decision 0035).
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from registry.clock import Clock, SystemClock
from registry.engines import StoreSettings
from registry.errors import Invalid
from registry.stores.dynamodb.admin import Capacity, create_registry
from registry.stores.dynamodb.client import DynamoClient, Endpoint
from registry.stores.dynamodb.store import DynamoStore

_TABLE = re.compile(r"^[A-Za-z0-9_.-]{3,255}$")


def parse_endpoint(url: str) -> Endpoint:
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"  # without what may be a key
    table, parameters = parts.path.removeprefix("/"), dict(parse_qsl(parts.query))
    if parts.scheme != "dynamodb" or not parts.hostname or parts.username is not None:
        raise Invalid("registry URL", shown, "must be dynamodb://REGION/TABLE; keys come from AWS's chain")
    if not _TABLE.match(table):
        raise Invalid("registry URL", shown, "needs a table of 3 to 255 letters, digits, or any of _ . -")
    unknown = sorted(parameters.keys() - {"endpoint"})
    if unknown:
        raise Invalid("registry URL", shown, f"takes only the parameter endpoint, not {unknown[0]}")
    return Endpoint(parts.hostname, table, parameters.get("endpoint"))


async def create(url: str, capacity: Capacity | None = None) -> None:
    """Creates the table of a registry, unless it exists."""
    client = DynamoClient(parse_endpoint(url))
    try:
        await create_registry(client, capacity)
    finally:
        await client.close()


async def open_registry(url: str, *, settings: StoreSettings | None = None, clock: Clock | None = None) -> DynamoStore:
    """Raises SchemaMismatch if there is no registry that this code can use, Unavailable if it can't be reached."""
    settings = settings or StoreSettings()
    client = DynamoClient(
        parse_endpoint(url),
        connections=settings.pool_size + settings.pool_overflow,
        connect_timeout_s=settings.connect_timeout_s,
    )
    store = DynamoStore(client, clock or SystemClock(), busy_timeout_s=settings.busy_timeout_s)
    try:
        await store.position()
    except BaseException:
        await store.close()
        raise
    return store
