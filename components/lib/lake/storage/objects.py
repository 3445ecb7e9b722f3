"""Objects on local disk and S3-compatible storage, by canonical URI.

An object appears whole or not at all, and is durable when the call returns. Errors:

    StorageError
    |-- StorageUnavailable  no response, or none in time   -> retry; a write may or may not have happened
    |-- StorageRefused      the storage refuses the call   -> fix credentials, permissions, bucket or disk
    |-- DeletionRefused     not below a known root         -> correct the row, or add the location to lake.roots
    `-- ObjectMissing       there is no such object        -> it was deleted, or never written
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import cached_property
from tempfile import SpooledTemporaryFile
from threading import Event
from typing import IO, TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from astha.errors import AsthaError
from astha.subscribers.context import LakeSettings, S3Settings
from astha.tasks import to_completion
from components.lib.lake.storage import local_files
from components.lib.lake.storage.locations import Location, canonical, parse
from components.lib.lake.storage.output_streams import Sink, Writable
from components.lib.lake.storage.roots import Roots, refusals

T = TypeVar("T")

_IN_MEMORY = 64 << 20  # larger objects are spooled to a temporary file before the upload
_PART = 8 << 20
_REFUSED = (
    "403 Forbidden",
    "401 Unauthorized",
    "400 Bad Request",
    "NoSuchBucket",
    "InvalidAccessKeyId",
    "AccessDenied",
)


class StorageError(AsthaError):
    pass


class StorageUnavailable(StorageError):
    pass


class StorageRefused(StorageError):
    pass


class DeletionRefused(StorageError):
    pass


class ObjectMissing(StorageError):
    pass


class _WriteCancelled(Exception):
    """Raised inside a writer whose caller was cancelled; never leaves this module."""


class Objects:
    """Safe for concurrent use in one event loop. Connects at the first call."""

    def __init__(self, lake: LakeSettings, *, timeout_s: float = 60.0, retry_s: float = 30.0) -> None:
        self.modes = lake.modes
        self._s3 = lake.s3
        self._lake = lake
        self._timeout = timedelta(seconds=timeout_s)
        self._retry = timedelta(seconds=retry_s)
        self._stores: dict[str, S3Store] = {}

    async def put(self, uri: str, data: bytes) -> None:
        """Replaces an existing object. Cancellation is that of `write`."""
        location = parse(uri)
        if location.scheme == "s3":
            await _to_completion(self._send(location, data, len(data)), Event())
            return

        def fill(sink: Sink) -> None:
            sink.write(data)

        await self.write(uri, fill)

    async def write(self, uri: str, fill: Callable[[Sink], T]) -> T:
        """Calls ``fill`` in a thread; what it writes becomes the object once it returns.

        A cancelled call returns only when the object can no longer appear: deleting it afterwards is final.
        """
        location = parse(uri)
        cancelled = Event()
        if location.scheme == "file":
            writing = asyncio.to_thread(local_files.write, location.path, _cancellable(fill, cancelled), self.modes)
            return await _to_completion(_local(location, writing), cancelled)
        return await _to_completion(self._upload(location, _cancellable(fill, cancelled)), cancelled)

    async def get(self, uri: str) -> bytes:
        location = parse(uri)
        if location.scheme == "file":
            return await _local(location, asyncio.to_thread(location.path.read_bytes))
        async with _translated(location):
            found = await obstore.get_async(self._store(location), location.key)
            return bytes(await found.bytes_async())

    async def get_many(self, uris: Sequence[str]) -> list[bytes]:
        """One after the other. Costs less than a `get` for each if they are small and local."""
        locations = [parse(uri) for uri in uris]
        if not all(location.scheme == "file" for location in locations):
            return [await self.get(uri) for uri in uris]
        return await asyncio.to_thread(_read_all, locations)

    async def get_range(self, uri: str, start: int, length: int) -> bytes:
        """Returns fewer bytes if the object ends earlier."""
        location = parse(uri)
        if location.scheme == "file":
            return await _local(location, asyncio.to_thread(local_files.read_range, location.path, start, length))
        if length == 0:
            return b""
        async with _translated(location):
            return bytes(await obstore.get_range_async(self._store(location), location.key, start=start, length=length))

    async def size(self, uri: str) -> int | None:
        """Returns None if there is no such object."""
        location = parse(uri)
        try:
            if location.scheme == "file":
                return (await _local(location, asyncio.to_thread(location.path.stat))).st_size
            async with _translated(location):
                return (await obstore.head_async(self._store(location), location.key))["size"]
        except ObjectMissing:
            return None

    async def exists(self, uri: str) -> bool:
        return await self.size(uri) is not None

    @cached_property
    def roots(self) -> Roots:
        """The roots of the settings, below which files may be deleted whatever tables there are."""
        return Roots(canonical(location) for location in (self._lake.warehouse, *self._lake.roots))

    async def delete_many(self, uris: Iterable[str], *, roots: Roots | None = None) -> None:
        """Deletes objects and what interrupted writes have left of them. Missing ones count as deleted.

        Raises `DeletionRefused`, and deletes nothing, if one is not below ``roots`` (by default those of the settings).
        """
        uris = list(uris)
        refused = await asyncio.to_thread(refusals, roots or self.roots, uris)
        if refused:
            raise DeletionRefused(f"{next(iter(refused.values()))}; {len(refused)} of {len(uris)} files: none deleted")
        locations = [parse(uri) for uri in uris]
        local = [location for location in locations if location.scheme == "file"]
        if local:
            await _local(local[0], asyncio.to_thread(local_files.delete, [location.path for location in local]))
        by_bucket: dict[str, list[Location]] = defaultdict(list)
        for location in locations:
            if location.scheme == "s3":
                by_bucket[location.root].append(location)
        for some in by_bucket.values():
            await self._delete(some)

    async def _delete(self, locations: Sequence[Location]) -> None:
        async with _translated(locations[0]):
            try:
                await obstore.delete_async(self._store(locations[0]), [location.key for location in locations])
            except FileNotFoundError:  # some services raise this for a missing object, and skip the rest
                for location in locations:
                    try:
                        await obstore.delete_async(self._store(location), location.key)
                    except FileNotFoundError:
                        continue

    async def _upload(self, location: Location, fill: Callable[[Writable], T]) -> T:
        with SpooledTemporaryFile(_IN_MEMORY) as spool:
            made = await asyncio.to_thread(fill, spool)
            size = spool.tell()
            spool.seek(0)
            await self._send(location, spool if size > _IN_MEMORY else spool.read(), size)
            return made

    async def _send(self, location: Location, content: bytes | IO[bytes], size: int) -> None:
        async with _translated(location):
            try:
                await obstore.put_async(
                    self._store(location), location.key, content, use_multipart=size > _PART, chunk_size=_PART
                )
            except FileNotFoundError as error:
                raise StorageRefused(f"{location.uri}: there is no bucket {location.root!r}: create it") from error

    def _store(self, location: Location) -> S3Store:
        found = self._stores.get(location.root)
        if found is None:
            found = self._stores[location.root] = open_bucket(location.root, self._s3, self._timeout, self._retry)
        return found


def open_bucket(bucket: str, s3: S3Settings, timeout: timedelta, retry: timedelta) -> S3Store:
    options: dict[str, str | bool] = {"region": s3.region, "virtual_hosted_style_request": s3.virtual_hosted}
    if s3.endpoint is not None:
        options["endpoint"] = s3.endpoint
    for name, secret in (
        ("access_key_id", s3.access_key),
        ("secret_access_key", s3.secret_key),
        ("session_token", s3.session_token),
    ):
        if secret is not None:
            options[name] = secret.get_secret_value()
    return S3Store(
        bucket,
        config=options,  # type: ignore[arg-type]
        client_options={"allow_http": s3.allow_http, "timeout": timeout, "connect_timeout": timedelta(seconds=5)},
        retry_config={"max_retries": 10, "retry_timeout": retry},
    )


def _cancellable(fill: Callable[[Sink], T], cancelled: Event) -> Callable[[Writable], T]:
    """Once ``cancelled`` is set, ends the writer at its next write, or at the latest before its object appears."""

    def guarded(target: Writable) -> T:
        def write(data: bytes) -> int:
            if cancelled.is_set():
                raise _WriteCancelled
            return target.write(data)

        made = fill(Sink(write))
        if cancelled.is_set():
            raise _WriteCancelled
        return made

    return guarded


async def _to_completion(work: Coroutine[None, None, T], cancelled: Event) -> T:
    """A thread cannot be cancelled, and a request that was sent may still be carried out."""

    async def run() -> T:
        try:
            return await work
        except Exception:
            if cancelled.is_set():  # the caller gets its cancellation, not the error that it has caused
                raise asyncio.CancelledError from None
            raise

    return await to_completion(run(), cancelled.set)


def _read_all(locations: Iterable[Location]) -> list[bytes]:
    found = []
    for location in locations:
        with _local_errors(location):
            found.append(location.path.read_bytes())
    return found


async def _local(location: Location, work: Awaitable[T]) -> T:
    with _local_errors(location):
        return await work


@contextmanager
def _local_errors(location: Location) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(f"{location.uri} does not exist") from error
    except OSError as error:
        raise StorageRefused(
            f"{location.uri}: {error.strerror or error}: check the disk and its permissions"
        ) from error


@asynccontextmanager
async def _translated(location: Location) -> AsyncIterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(f"{location.uri} does not exist, or its bucket does not") from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise StorageRefused(
            f"{location.uri}: {_first_line(error)}: check lake.s3's keys and their permissions"
        ) from error
    except BaseError as error:
        text = str(error)
        if any(sign in text for sign in _REFUSED):
            raise StorageRefused(f"{location.uri}: {_first_line(error)}: check lake.s3 and the bucket") from error
        raise StorageUnavailable(f"{location.uri}: {_first_line(error)}: is lake.s3.endpoint reachable?") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
