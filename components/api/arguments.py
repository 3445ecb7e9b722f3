"""What callers give: records of topics, and names of columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from components.lib.streams.format import NewRecord

Records: TypeAlias = "Iterable[bytes | str | NewRecord]"


def names_of(given: Sequence[str]) -> tuple[str, ...]:
    """Returns the names. One string is one name, and not the sequence of its letters."""
    return (given,) if isinstance(given, str) else tuple(given)


def records_of(given: Records) -> Iterator[NewRecord]:
    """Yields records. Raises TypeError for a value that is none, and for a single one in place of several."""
    from components.lib.streams.format import NewRecord

    if isinstance(given, str | bytes | NewRecord):
        raise TypeError(f"records are several values, not one {type(given).__name__}: put it in a list")
    for number, each in enumerate(given, 1):
        if isinstance(each, NewRecord):
            yield each
        elif isinstance(each, str | bytes):
            yield NewRecord(each.encode() if isinstance(each, str) else each)
        else:
            raise TypeError(f"record {number}: is {type(each).__name__}: give bytes, a str or an astha.NewRecord")
