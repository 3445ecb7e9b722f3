"""Changed rows, the items that they change, and how the commit log keeps them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar, cast

import msgspec

from registry.models import Row
from registry.stores.dynamodb.client import Action, Attributes
from registry.stores.dynamodb.layout import KINDS, LAYOUTS, ItemKey

R = TypeVar("R", bound=Row)

_Line: TypeAlias = tuple[str, msgspec.Raw, msgspec.Raw, tuple[ItemKey, ...]]
"""Table, row before, row after, pointers that are kept."""

ROW = "row"
"""The attribute of a row's item that holds the row as JSON."""

_POINTER = ("row_pk", "row_sk")
_CHUNK_BYTES = 1_000_000
"""Of JSON, which is compressed; an item may have 400 KB."""


class Change(msgspec.Struct, frozen=True):
    """``kept``: pointers of the row before that another row of the same commit takes over, so they are not deleted.
    Without them no two changes of a commit touch the same item, so it may be applied in any order, and repeatedly.
    """

    kind: type[Row]
    before: Row | None
    after: Row | None
    kept: tuple[ItemKey, ...] = ()

    @property
    def key(self) -> ItemKey:
        row = self.after or self.before
        assert row is not None  # noqa: S101  (one of them is a row)
        return LAYOUTS[self.kind].key(row)

    def pointers(self, row: Row | None, *, unique: bool = False) -> set[ItemKey]:
        if row is None:
            return set()
        chosen = (one for one in LAYOUTS[self.kind].pointers if one.unique or not unique)
        return {key for pointer in chosen if (key := pointer.key(row)) is not None}

    def freed(self) -> set[ItemKey]:
        """The pointers that the row no longer has."""
        return self.pointers(self.before) - self.pointers(self.after)

    def taken(self) -> set[ItemKey]:
        """The pointers that the row did not have before."""
        return self.pointers(self.after) - self.pointers(self.before)

    def actions(self) -> Iterator[Action]:
        key = self.key
        yield from (Action("delete", pointer) for pointer in sorted(self.freed().difference(self.kept)))
        if self.after is None:
            yield Action("delete", key)
            return
        yield Action("put", key, row_attributes(self.after))
        yield from (Action("put", pointer, dict(zip(_POINTER, key, strict=True))) for pointer in sorted(self.taken()))


def row_attributes(row: Row) -> Attributes:
    return {ROW: msgspec.json.encode(row).decode()}


def decode_row(kind: type[R], attributes: dict[str, str | int | bytes]) -> R:
    return msgspec.json.decode(cast("str", attributes[ROW]), type=kind)


def pointed_key(attributes: dict[str, str | int | bytes]) -> ItemKey:
    return cast("str", attributes[_POINTER[0]]), cast("str", attributes[_POINTER[1]])


def separated(changes: Iterable[Change]) -> list[Change]:
    """Returns the changes of one commit, each with the pointers that it leaves to another one."""
    found = list(changes)
    taken = {key for change in found for key in change.taken()}
    for number, change in enumerate(found):
        if kept := change.freed() & taken:
            found[number] = msgspec.structs.replace(change, kept=tuple(sorted(kept)))
    return found


def actions_of(changes: Iterable[Change]) -> list[Action]:
    return [action for change in changes for action in change.actions()]


def encode_changes(changes: Sequence[Change]) -> list[bytes]:
    """Returns one or more chunks, with the changes in their order."""
    chunks: list[bytes] = []
    lines: list[bytes] = []
    size = 0
    for change in changes:
        line = msgspec.json.encode((change.kind.table, change.before, change.after, change.kept))
        if size + len(line) > _CHUNK_BYTES and lines:
            chunks.append(zlib.compress(b"\n".join(lines), 1))
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    return [*chunks, zlib.compress(b"\n".join(lines), 1)]


def raw_changes(chunk: bytes) -> Iterator[tuple[str, msgspec.Raw, msgspec.Raw]]:
    """Yields table, row before and row after of each change."""
    for line in _lines(chunk):
        yield line[:3]


def decode_changes(chunk: bytes) -> list[Change]:
    found = []
    for table, before, after, kept in _lines(chunk):
        kind = KINDS[table]
        found.append(Change(kind, _decoded(kind, before), _decoded(kind, after), kept))
    return found


def _lines(chunk: bytes) -> Iterator[_Line]:
    for line in zlib.decompress(chunk).split(b"\n"):
        if line:
            yield msgspec.json.decode(line, type=_Line)


def is_null(raw: msgspec.Raw) -> bool:
    return bytes(raw) == b"null"


def _decoded(kind: type[Row], raw: msgspec.Raw) -> Row | None:
    return None if is_null(raw) else msgspec.json.decode(raw, type=kind)
