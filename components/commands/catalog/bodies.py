"""The bodies of requests about namespaces and names. Fields that are unknown here are ignored, as the protocol asks."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from components.commands.catalog.errors import BadRequest

T = TypeVar("T")


class Identifier(msgspec.Struct, frozen=True):
    namespace: list[str]
    name: str


class CreateNamespace(msgspec.Struct, frozen=True):
    namespace: list[str]
    properties: dict[str, str] | None = None


class UpdateNamespace(msgspec.Struct, frozen=True):
    removals: list[str] | None = None
    updates: dict[str, str] | None = None


class RegisterTable(msgspec.Struct, frozen=True, rename="kebab"):
    name: str
    metadata_location: str
    overwrite: bool | None = None


class RenameTable(msgspec.Struct, frozen=True):
    source: Identifier
    destination: Identifier


def decode(body: bytes, kind: type[T]) -> T:
    """Raises BadRequest if the body is not JSON of this form."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is malformed: {error}") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deep") from error
