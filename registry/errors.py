"""Everything a registry call may raise.

    RegistryError
    |-- NotFound           the named thing does not exist        -> create it, or correct the name
    |-- AlreadyExists      the name or path is taken             -> use that thing, or choose another name
    |   `-- AlreadyCommitted  a request with this key is done    -> read get_catalog_request
    |-- Conflict           the rows changed since they were read -> read again, decide again
    |   |-- Fenced         the lease is no longer held           -> stop writing, acquire it again
    |   |-- OutOfSequence  not the producer's next records       -> read get_producer_sequences
    |   |-- OffsetsMoved   the group's committed offset differs  -> read it, continue from there
    |   `-- AlreadyInserted  an insert with this id is done      -> read get_insert
    |-- Invalid            an argument can't be stored           -> fix the named field
    |-- PermissionDenied   the role lacks a privilege            -> `astha check` names it; grant it
    |-- Unavailable        no response, or none in time          -> retry with backoff
    |   `-- ReadOnly       the database takes no writes          -> retry with backoff; make it writable
    `-- SchemaMismatch     the schema is missing or older        -> `astha registry migrate`
        `-- SchemaTooNew   the schema is newer, not compatible   -> upgrade Astha

A call that raises any of these but Unavailable has written nothing. After Unavailable the write may or may not
have happened: every verb can be repeated, or its repetition raises AlreadyExists or Conflict.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Sequence

__all__ = [
    "AlreadyCommitted",
    "AlreadyExists",
    "AlreadyInserted",
    "Conflict",
    "Fenced",
    "Invalid",
    "NotFound",
    "OffsetsMoved",
    "OutOfSequence",
    "PermissionDenied",
    "ReadOnly",
    "RegistryError",
    "SchemaMismatch",
    "SchemaTooNew",
    "Unavailable",
]


class RegistryError(Exception):
    """Base class. The message names the thing, the value and what to do."""


class NotFound(RegistryError):
    pass


class AlreadyExists(RegistryError):
    pass


class AlreadyCommitted(AlreadyExists):
    """A request with the same Idempotency-Key was committed before."""


class Conflict(RegistryError):
    """``names`` lists the conflicting things (file paths, partitions), so that a caller can exclude them."""

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)


class Fenced(Conflict):
    pass


class OutOfSequence(Conflict):
    pass


class OffsetsMoved(Conflict):
    pass


class AlreadyInserted(Conflict):
    """``names`` are the paths of the repetition's files."""


class Invalid(RegistryError):
    """``field`` and ``value`` are the refused argument."""

    def __init__(self, field: str, value: object, why: str) -> None:
        super().__init__(f"{field} = {_shown(value)}: {why}")
        self.field = field
        self.value = value


class PermissionDenied(RegistryError):
    pass


class Unavailable(RegistryError):
    pass


class ReadOnly(Unavailable):
    """A standby, a server or role set to read-only, or a file that this user can only read."""


class SchemaMismatch(RegistryError):
    pass


class SchemaTooNew(SchemaMismatch):
    """A newer version of Astha has migrated the registry."""


def _shown(value: object) -> str:
    """Returns a short `repr`, also of values that are too long or nested too deep for it."""
    shown = reprlib.repr(value) if isinstance(value, Collection) and not isinstance(value, str | bytes) else repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
