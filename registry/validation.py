"""Checks of arguments before anything is sent. Each raises an `Invalid` that names the field and the value.

The plain checks take one value; `every` takes a column of a bulk call and costs about 20 ns per value, because it
compares types, minimum and maximum first and looks for the bad row only if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from registry.errors import Invalid

MAX_INT = 2**63 - 1
MAX_INT32 = 2**31 - 1
MAX_NAME = 255
MAX_LOCATION = 1000  # of the columns that Iceberg's JDBC catalogs define
MAX_TTL_MS = 100 * 365 * 86_400_000
MAX_PATH_BYTES = 2048  # indexed: a B-tree entry of PostgreSQL must stay under a third of a page
MAX_BUCKET_BYTES = 255

Check: TypeAlias = Callable[[str, object], None]


def integer(field: str, value: object, minimum: int = 0, maximum: int = MAX_INT) -> None:
    """Requires an integer that fits its column."""
    if type(value) is not int:
        raise Invalid(field, value, "must be an integer")
    if value < minimum:
        raise Invalid(field, value, f"must be at least {minimum}")
    if value > maximum:
        bits = "64-bit" if maximum == MAX_INT else "32-bit" if maximum == MAX_INT32 else "allowed"
        raise Invalid(field, value, f"is beyond the largest {bits} number, {maximum}")


def timestamp(field: str, value: object) -> None:
    """Requires epoch milliseconds, also before 1970."""
    integer(field, value, -MAX_INT - 1)


def integer32(field: str, value: object) -> None:
    integer(field, value, maximum=MAX_INT32)


def text(field: str, value: object) -> None:
    """Requires a string that every backend can store."""
    if not isinstance(value, str):
        raise Invalid(field, value, "must be a string")
    if "\0" in value:
        raise Invalid(field, value, "must not contain a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Invalid(field, value, "is not valid unicode") from error


def non_empty(field: str, value: object) -> None:
    """Requires a string that is not empty."""
    text(field, value)
    if not value:
        raise Invalid(field, value, "must not be empty")


def path(field: str, value: object) -> None:
    """Requires the path of an object or of a partition. The latter may be empty."""
    text(field, value)
    if len(str(value).encode()) > MAX_PATH_BYTES:
        raise Invalid(field, value, f"is longer than {MAX_PATH_BYTES} bytes")


def non_empty_path(field: str, value: object) -> None:
    non_empty(field, value)
    path(field, value)


def boolean(field: str, value: object) -> None:
    if type(value) is not bool:
        raise Invalid(field, value, "must be true or false")


def ttl(field: str, value: object) -> None:
    """Requires a duration in milliseconds that still fits its column when added to the current time."""
    integer(field, value, 1, MAX_TTL_MS)


def bucket(field: str, value: object) -> None:
    """Requires a name short enough to share an index entry with a path."""
    name(field, value)
    if len(str(value).encode()) > MAX_BUCKET_BYTES:
        raise Invalid(field, value, f"is longer than {MAX_BUCKET_BYTES} bytes")


def name(field: str, value: object) -> None:
    """Requires a name of a topic, group or table. It may become part of a path, so it has no slash."""
    non_empty(field, value)
    assert isinstance(value, str)  # noqa: S101  (non_empty checked it)
    if "/" in value:
        raise Invalid(field, value, "must not contain a slash")
    if value in (".", ".."):
        raise Invalid(field, value, "is reserved by file systems")
    if len(value) > MAX_NAME:
        raise Invalid(field, value, f"is longer than {MAX_NAME} characters")
    if not value.isprintable():
        raise Invalid(field, value, "must not contain control characters")


def table_name(field: str, value: object) -> None:
    """Requires a table's own name. Commands address tables as ``DATABASE.TABLE``, split at the last dot."""
    name(field, value)
    if "." in str(value):
        raise Invalid(field, value, "must not contain a dot: the part before the last dot names the database")


def database_name(field: str, value: object) -> None:
    """Requires a database's name, which may be nested: ``a.b``."""
    name(field, value)
    if not all(str(value).split(".")):
        raise Invalid(field, value, "has an empty part: write a, or a.b for a nested one")


def catalog_name(field: str, value: object) -> None:
    """Requires a name that fits the tables of the Iceberg catalog."""
    non_empty(field, value)
    if len(str(value)) > MAX_NAME:
        raise Invalid(field, value, f"is longer than {MAX_NAME} characters")


def metadata_location(field: str, value: object) -> None:
    """Requires the location of a metadata file, or the value of a property, that fits the Iceberg catalog."""
    non_empty(field, value)
    property_value(field, value)


def property_value(field: str, value: object) -> None:
    text(field, value)
    if len(str(value)) > MAX_LOCATION:
        raise Invalid(field, value, f"is longer than {MAX_LOCATION} characters")


def every(field: str, column: Sequence[object], check: Check) -> None:
    """Applies `check` to a column. On failure the message names the row."""
    if check in (integer, integer32):
        if set(map(type, column)) <= {int}:
            numbers: Sequence[int] = column  # type: ignore[assignment]
            limit = MAX_INT32 if check is integer32 else MAX_INT
            if not numbers or (min(numbers) >= 0 and max(numbers) <= limit):
                return
        _search(field, column, check)
        return
    if check is boolean:  # 1 == True, so a set of values would hide it
        if not set(map(type, column)) <= {bool}:
            _search(field, column, check)
        return
    try:
        for value in set(column):
            check(field, value)
    except (Invalid, TypeError):  # TypeError: unhashable, so not a string
        _search(field, column, check)


def optional(field: str, value: object, check: Check) -> None:
    if value is not None:
        check(field, value)


def one_of(field: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise Invalid(field, value, f"must be one of {', '.join(allowed)}")


def _search(field: str, column: Sequence[object], check: Check) -> None:
    for row, value in enumerate(column):
        check(f"{field} of row {row}" if len(column) > 1 else field, value)
