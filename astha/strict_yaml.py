"""YAML as people write it by hand: a key that stands twice is refused, and every complaint can name its line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import yaml

from astha.errors import ConfigError

KeyPath: TypeAlias = tuple[str, ...]


class Document(msgspec.Struct, frozen=True):
    content: Any
    lines: Mapping[KeyPath, int]  # of each key, by the keys on the way to it


class _Strict(yaml.SafeLoader):
    """Refuses a key that stands twice, where YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise ConfigError(f"line {line}: {key!r} stands twice: keep one of them")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error


def parse(text: str) -> Document:
    """ConfigError names the line; the file is for the caller to name."""
    try:
        root = yaml.compose(text, Loader=_Strict)
        content = yaml.load(text, Loader=_Strict)  # noqa: S506  (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"line {line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"line 1: not YAML: {error}") from error
    return Document(content, _lines(root, ()))


def _lines(node: yaml.Node | None, path: KeyPath) -> dict[KeyPath, int]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    lines: dict[KeyPath, int] = {}
    for key, value in node.value:
        place = (*path, str(key.value))
        lines[place] = key.start_mark.line + 1
        lines |= _lines(value, place)
    return lines
