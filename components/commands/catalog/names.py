"""Names of namespaces and tables, and page tokens, as they are written in URLs and in the registry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from components.commands.catalog.bodies import Identifier
from components.commands.catalog.errors import BadRequest
from registry import validation
from registry.errors import Invalid

T = TypeVar("T")

SEPARATOR = "\x1f"
"""Between the levels of a namespace in a URL; the registry has dots."""

MAX_PAGE = 1_000


class TableIdentity(NamedTuple):
    """A table's name, as the registry has it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"

    @classmethod
    def existing(cls, namespace: str, name: str) -> TableIdentity:
        """Of a table that may exist: any name that can be looked up."""
        if not name or "\0" in name:
            raise BadRequest("a table's name must not be empty or contain the character NUL")
        return cls(namespace, name)

    @classmethod
    def new(cls, namespace: str, name: str) -> TableIdentity:
        """Raises BadRequest if the registry does not accept the name."""
        try:
            validation.table_name("name", name)
        except Invalid as error:
            raise BadRequest(str(error)) from error
        return cls(namespace, name)


def namespace_of(text: str) -> str:
    """Returns the registry's form of a namespace from a URL."""
    return joined(text.split(SEPARATOR))


def joined(levels: Sequence[str]) -> str:
    """Returns the registry's form of a namespace. A dot inside a level counts as the separator of two."""
    if not levels or not all(levels):
        raise BadRequest("a namespace and its levels must not be empty")
    if any("\0" in level or SEPARATOR in level for level in levels):
        raise BadRequest("a namespace must not contain the characters NUL and 0x1F")
    return ".".join(levels)


def new_namespace(levels: Sequence[str]) -> str:
    """Returns the registry's form of a namespace that is to be created."""
    name = joined(levels)
    dotted = next((level for level in levels if "." in level), None)
    if dotted is not None:
        raise BadRequest(f"{dotted[:80]!r} has a dot, which separates the levels of a namespace here: leave it out")
    try:
        validation.database_name("namespace", name)
    except Invalid as error:
        raise BadRequest(str(error)) from error
    return name


def identity_of(identifier: Identifier) -> TableIdentity:
    return TableIdentity.existing(joined(identifier.namespace), identifier.name)


def levels_of(namespace: str) -> list[str]:
    return namespace.split(".")


def children(namespaces: Iterable[str], parent: str) -> list[str]:
    """Returns the namespaces one level below `parent` (the first levels if it is empty), also those that exist only
    because a deeper one does.
    """
    prefix = f"{parent}." if parent else ""
    return sorted(
        {prefix + name[len(prefix) :].partition(".")[0] for name in namespaces if name.startswith(prefix) and name}
    )


def page_size(text: str | None) -> int:
    """Returns the number of entries of a page, at most `MAX_PAGE`."""
    if text is None:
        return MAX_PAGE
    try:
        size = int(text)
    except ValueError:
        size = 0
    if size < 1:
        raise BadRequest(f"pageSize must be a number of at least 1, not {text[:20]!r}")
    return min(size, MAX_PAGE)


def page(found: Sequence[T], size: int, paged: bool) -> tuple[Sequence[T], T | None]:
    """Returns the entries of a page and the last one, if more follow. `found` has one more than a page, if there is."""
    if not paged or len(found) <= size:
        return found, None
    return found[:size], found[size - 1]
