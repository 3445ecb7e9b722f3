"""Changed rows, the items that they change, and how the commit log keeps them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, cast

import msgspec

from registry.models import Row
from registry.stores.dynamodb.client import Action, Attributes
from registry.stores.dynamodb.layout import KINDS, LAYOUTS, ItemKey

R = TypeVar("R", bound=Row)

ROW = "row"
"""The attribute of a row's item that holds the row as JSON."""

_POINTER = ("row_pk", "row_sk")
_CHUNK_BYTES = 1_000_000
"""Of JSON, which is compressed; an item may have 400 KB."""


class Change(msgspec.Struct, frozen=True):
    kind: type[Row]
    before: Row | None
    after: Row | None

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

    def actions(self) -> Iterator[Action]:
        """Yields deletions first: another row of the same commit may take a pointer over."""
        key, old, new = self.key, self.pointers(self.before), self.pointers(self.after)
        yield from (Action("delete", pointer) for pointer in sorted(old - new))
        if self.after is None:
            yield Action("delete", key)
            return
        yield Action("put", key, row_attributes(self.after))
        yield from (Action("put", pointer, dict(zip(_POINTER, key, strict=True))) for pointer in sorted(new - old))


def row_attributes(row: Row) -> Attributes:
    return {ROW: msgspec.json.encode(row).decode()}


def decode_row(kind: type[R], attributes: dict[str, str | int | bytes]) -> R:
    return msgspec.json.decode(cast("str", attributes[ROW]), type=kind)


def pointed_key(attributes: dict[str, str | int | bytes]) -> ItemKey:
    return cast("str", attributes[_POINTER[0]]), cast("str", attributes[_POINTER[1]])


def in_order(changes: Iterable[Change]) -> list[Change]:
    """Returns deletions before updates before insertions: a pointer that two rows have one after the other ends as the
    second one's.
    """
    return sorted(changes, key=lambda change: 0 if change.after is None else 2 if change.before is None else 1)


def merged_actions(changes: Sequence[Change]) -> list[Action]:
    """Returns at most one action per item, as a transaction requires."""
    actions: dict[ItemKey, Action] = {}
    for change in changes:
        for action in change.actions():
            if action.kind == "put" or action.key not in actions:
                actions[action.key] = action
    return list(actions.values())


def encode_changes(changes: Sequence[Change]) -> list[bytes]:
    """Returns one or more chunks."""
    chunks: list[bytes] = []
    lines: list[bytes] = []
    size = 0
    for change in changes:
        line = msgspec.json.encode((change.kind.table, change.before, change.after))
        if size + len(line) > _CHUNK_BYTES and lines:
            chunks.append(zlib.compress(b"\n".join(lines), 1))
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    return [*chunks, zlib.compress(b"\n".join(lines), 1)]


def decode_changes(chunk: bytes) -> list[Change]:
    found = []
    for line in zlib.decompress(chunk).split(b"\n"):
        if line:
            table, before, after = msgspec.json.decode(line, type=tuple[str, msgspec.Raw, msgspec.Raw])
            kind = KINDS[table]
            found.append(Change(kind, _decoded(kind, before), _decoded(kind, after)))
    return found


def _decoded(kind: type[Row], raw: msgspec.Raw) -> Row | None:
    return None if bytes(raw) == b"null" else msgspec.json.decode(raw, type=kind)
