"""One group of registrations, committed in one transaction; each of them gets its own result.

A registration that can't be stored does not take the others down: the group is divided until it stands alone. After
`Unavailable` nobody knows whether the group was committed, so it is sent again, and a refusal of what was sent
twice is looked into before it is believed: files that are ours to the last field are a success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from astha.clock import LoopClock
from registry.contract import Files
from registry.errors import Conflict, RegistryError, SchemaMismatch, Unavailable
from registry.inputs import FileDraft, Registration
from registry.json_text import parse_json_as
from registry.models import TableFile

log = structlog.get_logger(__name__)

A = TypeVar("A")
T = TypeVar("T")


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """What is done when the registry does not answer. Together the waits take about half a minute."""

    attempts: int = 12
    backoff_initial_s: float = 0.05
    backoff_max_s: float = 10.0

    def wait(self, failures: int, clock: LoopClock) -> float:
        """Exponential with jitter, never less than half."""
        limit: float = min(self.backoff_max_s, self.backoff_initial_s * 2 ** min(failures - 1, 30))
        return limit * (0.5 + 0.5 * clock.chance())


class PendingRegistration:
    """A registration on its way, and the future that its caller holds."""

    __slots__ = ("doubtful", "registration", "result", "succeeded")

    def __init__(self, registration: Registration, result: asyncio.Future[list[TableFile]]) -> None:
        self.registration = registration
        self.result = result
        self.succeeded: bool | None = None  # None: it has no result yet
        self.doubtful = False  # sent once without an answer: it may be registered already

    @property
    def paths(self) -> list[str]:
        return [draft.file_path for draft in self.registration.files]

    def succeed(self, files: list[TableFile]) -> None:
        self.succeeded = True
        if not self.result.done():
            self.result.set_result(files)

    def fail(self, error: BaseException) -> None:
        """A caller who has gone (its future is cancelled) leaves the failure to the log."""
        self.succeeded = False
        if not self.result.done():
            self.result.set_exception(error)
        else:
            log.warning("registration failed after its caller had gone", registration=str(self), error=repr(error))

    def __str__(self) -> str:
        paths = self.paths
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return f"{paths[0] if paths else 'no file'}{more} of table {self.registration.table_id}"


class GroupCommit:
    """`retried` is called before each repetition."""

    def __init__(self, store: Files, clock: LoopClock, retries: Retries, retried: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._retries = retries
        self._retried = retried

    async def commit(self, entries: Sequence[PendingRegistration]) -> RegistryError | None:
        """Returns when each entry has its result, which is durable. Answers the error if the registry itself failed,
        for all of them. Raises only if it is cancelled.
        """
        try:
            results = await self._insist(self._register, entries)
        except (Unavailable, SchemaMismatch) as error:
            give_up(entries, error)
            return error
        except Exception as error:
            if not isinstance(error, RegistryError):
                _doubt(entries)
            if len(entries) > 1:
                return await self._divide(entries, error)
            await self._refuse(entries[0], error)
        else:
            for entry, files in zip(entries, results, strict=True):
                entry.succeed(files)
        return None

    async def _divide(self, entries: Sequence[PendingRegistration], error: Exception) -> RegistryError | None:
        """One of them was refused: find out which. If the registry fails meanwhile, the rest does not wait again."""
        failed: RegistryError | None = None
        for part in _parts(entries, error):
            if failed is None:
                failed = await self.commit(part)
            else:
                give_up(part, failed)
        return failed

    async def _refuse(self, entry: PendingRegistration, error: Exception) -> None:
        """Unless it was registered by a call that was not answered."""
        if entry.doubtful:
            try:
                files = await self._insist(self._find, entry)
            except Exception as reason:
                unknown = Unavailable(f"{entry}: refused ({error}), but may be registered already: {reason}")
                unknown.__cause__ = error
                error = unknown
            else:
                if files is not None:
                    entry.succeed(files)
                    return
        entry.fail(error)

    async def _insist(self, call: Callable[[A], Awaitable[T]], argument: A) -> T:
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(Unavailable),
            stop=stop_after_attempt(self._retries.attempts),
            wait=self._wait,
            sleep=self._clock.sleep,
            before_sleep=self._say,
            reraise=True,
        )
        return await attempts(call, argument)

    async def _register(self, entries: Sequence[PendingRegistration]) -> list[list[TableFile]]:
        """What has no intents could be registered twice, if it has been removed meanwhile: it is looked up first."""
        if not any(entry.doubtful and entry.registration.intents_of is None for entry in entries):
            return await self._send(entries)
        found = [await self._find(entry) for entry in entries]
        missing = [entry for entry, files in zip(entries, found, strict=True) if files is None]
        answers = iter(await self._send(missing) if missing else [])
        return [next(answers) if files is None else files for files in found]

    async def _send(self, entries: Sequence[PendingRegistration]) -> list[list[TableFile]]:
        try:
            return await self._store.register_files([entry.registration for entry in entries])
        except (Unavailable, asyncio.CancelledError):
            _doubt(entries)
            raise

    async def _find(self, entry: PendingRegistration) -> list[TableFile] | None:
        """The files of an entry that is registered already, also if they have been removed since; None if it isn't,
        or if it has no files by which that could be known.
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

    def _wait(self, state: RetryCallState) -> float:
        return self._retries.wait(state.attempt_number, self._clock)

    def _say(self, state: RetryCallState) -> None:
        self._retried()
        log.warning(
            "registration unanswered, will retry",
            attempt=state.attempt_number,
            of=self._retries.attempts,
            error=repr(state.outcome.exception() if state.outcome else None),
            wait_s=round(state.upcoming_sleep, 3),
        )


def give_up(entries: Iterable[PendingRegistration], error: RegistryError) -> None:
    """Each gets an error of its own, with what it should know of itself."""
    for entry in entries:
        doubt = "it may be registered nevertheless, its upload intents tell" if entry.doubtful else "not registered"
        own = type(error)(f"{entry}: {error} ({doubt})")
        own.__cause__ = error
        entry.fail(own)


def _doubt(entries: Iterable[PendingRegistration]) -> None:
    for entry in entries:
        entry.doubtful = True


def _parts(entries: Sequence[PendingRegistration], error: Exception) -> list[list[PendingRegistration]]:
    """By table first; then those that the error names, one by one, apart from the others; else in halves."""
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
