"""Opens a registry by a URL, creates it, and tells whether this code can use it."""

from __future__ import annotations

from registry.clock import Clock, SystemClock
from registry.dynamodb_url import parse_endpoint
from registry.engines import StoreSettings
from registry.errors import Invalid, SchemaMismatch
from registry.stores.dynamodb.admin import Capacity, create_registry
from registry.stores.dynamodb.client import DynamoClient
from registry.stores.dynamodb.state import REGISTRY
from registry.stores.dynamodb.state import VERSION as VERSION
from registry.stores.dynamodb.store import DynamoStore


def capacity_of(settings: StoreSettings) -> Capacity:
    """Raises Invalid if only one of the two numbers is set."""
    read, write = settings.read_units, settings.write_units
    if read is None and write is None:
        return Capacity()
    if read is None or write is None:
        raise Invalid("registry.read_units", read, "must be set together with registry.write_units, or neither")
    return Capacity(mode="provisioned", read_units=read, write_units=write)


async def create(url: str, capacity: Capacity | None = None) -> None:
    """Creates the table of a registry, unless it exists."""
    client = DynamoClient(parse_endpoint(url))
    try:
        await create_registry(client, capacity)
    finally:
        await client.close()


async def find_version(url: str, settings: StoreSettings | None = None) -> int | None:
    """Returns the version of the items; None if there is no table, or no registry in it."""
    client = DynamoClient(parse_endpoint(url), connect_timeout_s=(settings or StoreSettings()).connect_timeout_s)
    try:
        item = await client.get(REGISTRY.key)
    except SchemaMismatch:
        return None
    finally:
        await client.close()
    return None if item is None else int(item.attributes["version"])


def make_store(
    url: str, settings: StoreSettings | None = None, clock: Clock | None = None, *, urgent: bool = False
) -> DynamoStore:
    """It connects at first use."""
    settings = settings or StoreSettings()
    client = DynamoClient(
        parse_endpoint(url),
        connections=settings.pool_size + settings.pool_overflow,
        connect_timeout_s=settings.connect_timeout_s,
    )
    return DynamoStore(client, clock or SystemClock(), busy_timeout_s=settings.busy_timeout_s, urgent=urgent)


async def open_registry(url: str, *, settings: StoreSettings | None = None, clock: Clock | None = None) -> DynamoStore:
    """Raises SchemaMismatch if there is no registry that this code can use, Unavailable if it can't be reached."""
    store = make_store(url, settings, clock)
    try:
        await store.position()
    except BaseException:
        await store.close()
        raise
    return store
