"""What a caller may read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from astha.settings.catalog import EVERYTHING, Right


@dataclass(frozen=True, slots=True)
class Grants:
    """Of one caller. A grant covers the namespaces below its own, and none takes away what another one gives."""

    caller: str
    rights: Mapping[str, Right]

    def allow(self, namespace: str, *, write: bool = False) -> bool:
        """`namespace` has its levels joined by dots, as in the registry."""
        return any(
            (right == "write" or not write) and _covers(granted, namespace) for granted, right in self.rights.items()
        )


ANONYMOUS = Grants("anonymous", {EVERYTHING: "write"})
"""Of every local user, if no login is configured."""

TOKEN = Grants("catalog.token", {EVERYTHING: "write"})
READ_TOKEN = Grants("catalog.read_token", {EVERYTHING: "read"})


def _covers(granted: str, namespace: str) -> bool:
    return granted in (EVERYTHING, namespace) or namespace.startswith(f"{granted}.")
