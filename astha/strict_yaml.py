"""Strict YAML for files written by hand: duplicate keys are errors, and every error names its line.

An alias counts as many nodes as its target, so a text of a few hundred bytes can't expand to gigabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import yaml

from astha.errors import ConfigError

KeyPath: TypeAlias = tuple[str, ...]

MAX_BYTES: Final = 1 << 20
MAX_NODES: Final = 100_000  # with aliases expanded
MAX_DEPTH: Final = 100  # with aliases expanded

_WRONG_SCALAR = (ValueError, ArithmeticError, LookupError, AttributeError, TypeError)
"""What PyYAML's constructors raise on `0b_`, `2001-99-99`, `!!bool x`, `!!timestamp x` or `!!int ""`."""


class Document(msgspec.Struct, frozen=True):
    content: Any
    lines: Mapping[KeyPath, int]  # of each key, by its path of keys


class _Extent(msgspec.Struct):
    """The size of a node with everything below it, aliases expanded."""

    nodes: int
    height: int


class _Strict(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML would silently take the last, and documents beyond the limits."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._extents: dict[yaml.Node, _Extent] = {}
        self._open: list[_Extent] = []  # nodes being composed, outermost first

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Called once for each node of the text, before anything is constructed."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            known = None if node is None else self._extents.get(node)
            if known is None:
                raise ConfigError(f"line {line}: *{event.anchor} refers to a node that contains it: write it out")
            self._add(known, line)
            return node
        if len(self._open) >= MAX_DEPTH:
            raise ConfigError(f"line {line}: more than {MAX_DEPTH} nested levels")
        self._open.append(_Extent(1, 1))
        node = super().compose_node(parent, index)
        extent = self._open.pop()
        if node is not None:
            self._extents[node] = extent
        self._add(extent, line)
        return node

    def _add(self, extent: _Extent, line: int) -> None:
        if extent.nodes > MAX_NODES:
            raise ConfigError(f"line {line}: more than {MAX_NODES:,} values, with aliases expanded")
        if extent.height > MAX_DEPTH:
            raise ConfigError(f"line {line}: more than {MAX_DEPTH} nested levels, with aliases expanded")
        if self._open:
            above = self._open[-1]
            above.nodes += extent.nodes
            above.height = max(above.height, extent.height + 1)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except _WRONG_SCALAR as error:
            line = node.start_mark.line + 1
            kind = str(node.tag).rpartition(":")[2]
            raise ConfigError(f"line {line}: can't be read as {kind}: {error}; put text into quotes") from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            try:
                known = key in seen
            except TypeError:
                raise ConfigError(f"line {line}: a key is a list or a mapping: use text") from None
            if known:
                raise ConfigError(f"line {line}: {key!r} appears twice: keep one of them")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_text(path: Path) -> str:
    """Raises ConfigError if the file can't be read or has more than `MAX_BYTES`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: has more than {MAX_BYTES:,} bytes: is it the right file?")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse(text: str) -> Document:
    """Raises ConfigError with the line; the caller adds the file."""
    try:
        loader = _Strict(text)
        root = loader.get_single_node()
        lines = _lines(root, ())
        return Document(None if root is None else loader.construct_document(root), lines)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"line {line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"line 1: not YAML: {error}") from error


def _lines(node: yaml.Node | None, path: KeyPath) -> dict[KeyPath, int]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    lines: dict[KeyPath, int] = {}
    for key, value in node.value:
        key_path = (*path, str(key.value))
        lines[key_path] = key.start_mark.line + 1
        lines |= _lines(value, key_path)
    return lines
