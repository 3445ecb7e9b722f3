"""Commits a group of registrations in one transaction; each registration gets its own result.

A registration that is refused does not fail the others: the group is split until it is alone. After `Unavailable` it is
unknown whether the group was committed, so it is sent again. If a registration that was sent twice is refused, the
registry is asked first whether its files are there with exactly our values: that is a success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from registry.contract import Files
from registry.errors import Conflict, RegistryError, SchemaMismatch, Unavailable
from registry.inputs import FileDraft, Registration
from registry.json_text import parse_json_as
from registry.models import TableFile

log = structlog.get_logger(__name__)

A = TypeVar("A")
T = TypeVar("T")


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """RetryPolicy while the registry is unavailable. By default the waits take about half a minute in all."""

    attempts: int = 12
    backoff: Backoff = Backoff(initial_s=0.05, max_s=10.0)


class PendingRegistration:
    """An accepted registration, and the future that its caller holds."""

    __slots__ = ("registration", "result", "succeeded", "unconfirmed")

    def __init__(self, registration: Registration, result: asyncio.Future[list[TableFile]]) -> None:
        self.registration = registration
        self.result = result
        self.succeeded: bool | None = None  # None: no result yet
        self.unconfirmed = False  # sent once without a response: it may be registered already

    @property
    def paths(self) -> list[str]:
        return [draft.file_path for draft in self.registration.files]

    def succeed(self, files: list[TableFile]) -> None:
        self.succeeded = True
        if not self.result.done():
            self.result.set_result(files)

    def fail(self, error: BaseException) -> None:
        """Logs the failure if the caller is gone (its future is cancelled)."""
        self.succeeded = False
        if not self.result.done():
            self.result.set_exception(error)
        else:
            log.warning("registration failed after its caller was cancelled", registration=str(self), error=repr(error))

    def __str__(self) -> str:
        paths = self.paths
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return f"{paths[0] if paths else 'no file'}{more} of table {self.registration.table_id}"


class GroupCommit:
    def __init__(self, store: Files, clock: LoopClock, policy: RetryPolicy, on_retry: Callable[[], None]) -> None:
        """`on_retry` is called before each retry."""
        self._store = store
        self._clock = clock
        self._policy = policy
        self._on_retry = on_retry

    async def commit(self, entries: Sequence[PendingRegistration]) -> RegistryError | None:
        """Returns when each registration has its result, which is durable. Returns the error if the registry itself
        failed, for all of them. Raises only if it is cancelled.
        """
        try:
            results = await self._with_retries(self._register, entries)
        except (Unavailable, SchemaMismatch) as error:
            give_up(entries, error)
            return error
        except Exception as error:
            if not isinstance(error, RegistryError):
                _mark_unconfirmed(entries)
            if len(entries) > 1:
                return await self._split(entries, error)
            await self._refuse(entries[0], error)
        else:
            for entry, files in zip(entries, results, strict=True):
                entry.succeed(files)
        return None

    async def _split(self, entries: Sequence[PendingRegistration], error: Exception) -> RegistryError | None:
        """Commits smaller groups, because one registration was refused. If the registry fails meanwhile, the rest
        fails without another wait.
        """
        failed: RegistryError | None = None
        for part in _parts(entries, error):
            if failed is None:
                failed = await self.commit(part)
            else:
                give_up(part, failed)
        return failed

    async def _refuse(self, entry: PendingRegistration, error: Exception) -> None:
        """Fails the registration, unless an earlier call without a response has committed it."""
        if entry.unconfirmed:
            try:
                files = await self._with_retries(self._find, entry)
            except Exception as reason:
                unknown = Unavailable(f"{entry}: refused ({error}), but may be registered already: {reason}")
                unknown.__cause__ = error
                error = unknown
            else:
                if files is not None:
                    entry.succeed(files)
                    return
        entry.fail(error)

    async def _with_retries(self, call: Callable[[A], Awaitable[T]], argument: A) -> T:
        retrying = self._policy.backoff.retrying(
            self._clock,
            retry_on=lambda error: isinstance(error, Unavailable),
            attempts=self._policy.attempts,
            on_retry=self._before_retry,
        )
        return await retrying(call, argument)

    async def _register(self, entries: Sequence[PendingRegistration]) -> list[list[TableFile]]:
        """Looks up unconfirmed registrations without intents first: if their files were removed meanwhile, a second
        registration would succeed.
        """
        if not any(entry.unconfirmed and entry.registration.intents_of is None for entry in entries):
            return await self._send(entries)
        found = [await self._find(entry) for entry in entries]
        missing = [entry for entry, files in zip(entries, found, strict=True) if files is None]
        registered = iter(await self._send(missing) if missing else [])
        return [next(registered) if files is None else files for files in found]

    async def _send(self, entries: Sequence[PendingRegistration]) -> list[list[TableFile]]:
        try:
            return await self._store.register_files([entry.registration for entry in entries])
        except (Unavailable, asyncio.CancelledError):
            _mark_unconfirmed(entries)
            raise

    async def _find(self, entry: PendingRegistration) -> list[TableFile] | None:
        """Returns the files of a registration that was committed already, also if they have been removed since.

        Returns None if it was not, or if it has no files by which that could be known.
        """
        registration = entry.registration
        if registration.advances and not registration.files:
            return None
        found = {file.file_path: file for file in await self._store.get_files(registration.table_id, entry.paths)}
        if len(found) < len(registration.files):
            found |= await self._removed(registration.table_id, set(entry.paths) - found.keys())
        files = [found.get(path) for path in entry.paths]
        ours = [
            file
            for file, draft in zip(files, registration.files, strict=True)
            if file is not None and _same(file, draft, registration)
        ]
        return ours if len(ours) == len(files) else None

    async def _removed(self, table_id: int, paths: set[str]) -> dict[str, TableFile]:
        found: dict[str, TableFile] = {}
        after = 0
        while page := await self._store.list_files_awaiting_deletion(table_id=table_id, after=after):
            found |= {part.file_path: parse_json_as(part.file, TableFile) for part in page if part.file_path in paths}
            after = page[-1].id
        return found

    def _before_retry(self, error: BaseException, failures: int, wait_s: float) -> None:
        self._on_retry()
        log.warning(
            "registry unavailable, registration will be retried",
            attempt=failures,
            attempts=self._policy.attempts,
            error=repr(error),
            wait_s=round(wait_s, 3),
        )


def give_up(entries: Iterable[PendingRegistration], error: RegistryError) -> None:
    """Fails each registration with an error of its own, which says whether it may have been committed."""
    for entry in entries:
        state = "it may be registered nevertheless, its upload intents tell" if entry.unconfirmed else "not registered"
        own = type(error)(f"{entry}: {error} ({state})")
        own.__cause__ = error
        entry.fail(own)


def _mark_unconfirmed(entries: Iterable[PendingRegistration]) -> None:
    for entry in entries:
        entry.unconfirmed = True


def _parts(entries: Sequence[PendingRegistration], error: Exception) -> list[list[PendingRegistration]]:
    """Splits by table first; then into the registrations that the error names, one by one, and the rest; else into
    halves.
    """
    tables: dict[int, list[PendingRegistration]] = {}
    for entry in entries:
        tables.setdefault(entry.registration.table_id, []).append(entry)
    if len(tables) > 1:
        return list(tables.values())
    names = frozenset(error.names) if isinstance(error, Conflict) else frozenset()
    named = [entry for entry in entries if not names.isdisjoint(entry.paths)]
    if named:
        others = [entry for entry in entries if entry not in named]
        return [*([others] if others else []), *([entry] for entry in named)]
    half = len(entries) // 2
    return [list(entries[:half]), list(entries[half:])]


def _same(file: TableFile, draft: FileDraft, registration: Registration) -> bool:
    return (file.operation, file.operation_id) == (registration.operation, registration.operation_id) and all(
        getattr(file, field) == getattr(draft, field) for field in FileDraft.__struct_fields__
    )
