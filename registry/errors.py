"""Everything a registry call may raise.

    RegistryError
    |-- NotFound           the thing named does not exist        -> create it, or correct the name
    |-- AlreadyExists      a thing of that name exists           -> use it, or choose another name
    |-- Conflict           the world changed since you looked    -> read again, decide again
    |   |-- Fenced         your lease is no longer yours         -> stop writing, acquire anew
    |   |-- OutOfSequence  not the producer's next records       -> look what was written last
    |   `-- OffsetsMoved   the group is elsewhere by now         -> read its offsets, go on from there
    |-- Invalid            an argument can't be stored           -> fix the named field
    |-- PermissionDenied   the role lacks a privilege            -> `astha check` names it; grant it
    |-- Unavailable        no answer, or none in time            -> retry with backoff
    |   `-- ReadOnly       the database takes no writes          -> retry with backoff; make it writable
    `-- SchemaMismatch     the database is older or newer        -> `astha registry migrate`, or upgrade Astha

A call that raises any of these but Unavailable has written nothing. After Unavailable the write may or may not
have happened: every verb is safe to repeat or answers the repetition with AlreadyExists or Conflict.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Sequence

__all__ = [
    "AlreadyExists",
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
    "Unavailable",
]


class RegistryError(Exception):
    """Base of all; the message names the thing, the value and the way out."""


class NotFound(RegistryError):
    pass


class AlreadyExists(RegistryError):
    pass


class Conflict(RegistryError):
    """``names`` lists what stood in the way (file paths, partitions), so that a caller can plan without them."""

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)


class Fenced(Conflict):
    pass


class OutOfSequence(Conflict):
    pass


class OffsetsMoved(Conflict):
    pass


class Invalid(RegistryError):
    """``field`` and ``value`` say what was refused."""

    def __init__(self, field: str, value: object, why: str) -> None:
        super().__init__(f"{field} = {_shown(value)}: {why}")
        self.field = field
        self.value = value


class PermissionDenied(RegistryError):
    pass


class Unavailable(RegistryError):
    pass


class ReadOnly(Unavailable):
    """A standby, a server or role set to read only, or a file that this user may only read."""


class SchemaMismatch(RegistryError):
    pass


def _shown(value: object) -> str:
    """Short, and safe for what is nested too deep or too long for `repr`."""
    shown = reprlib.repr(value) if isinstance(value, Collection) and not isinstance(value, str | bytes) else repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
