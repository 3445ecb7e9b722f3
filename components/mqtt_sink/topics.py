"""Names of topics. A value of the registry fills exactly one level: it can't add levels or wildcards."""

from __future__ import annotations

from operator import attrgetter
from urllib.parse import quote

from astha.subscribers import PUBLISHED, Row

_MAX_TOPIC_BYTES = 65_535
_KEY_COLUMNS = {kind: tuple(attrgetter(name) for name in kind.key) for kind in PUBLISHED}


def require_prefix(prefix: str) -> None:
    """Raises ValueError, which says why, if topics can't begin with it."""
    if "+" in prefix or "#" in prefix or not prefix.isprintable():
        raise ValueError(f"prefix {prefix!r} has a wildcard (+ #) or a control character")
    if not all(prefix.split("/")):
        raise ValueError(f"prefix {prefix!r} has an empty level: write it like site/astha")
    if prefix.startswith("$"):
        raise ValueError(f"prefix {prefix!r} begins with $: such topics belong to the broker")
    if len(prefix.encode()) > 1_000:
        raise ValueError("prefix is longer than 1,000 bytes")


def level(value: object) -> str:
    """Returns the value as one level: all but letters, digits and ``_.-~`` is percent-encoded, as in a URL."""
    return quote(str(value), safe="")


class Topics:
    """The topics below one prefix."""

    def __init__(self, prefix: str, keys: bool) -> None:
        self._prefix = prefix
        self._keys = keys
        self.transactions = f"{prefix}/transactions"
        self.refresh = f"{prefix}/refresh"

    def change(self, operation: str, row: Row) -> str:
        """``PREFIX/TABLE/OPERATION/KEY``, with one level for each column of the key. A key that is longer than a topic
        can be is left out; the message has it.
        """
        topic = f"{self._prefix}/{row.table}/{operation}"
        if not self._keys:
            return topic
        key = "/".join([level(get(row)) for get in _KEY_COLUMNS[type(row)]])
        return topic if len(topic) + 1 + len(key) > _MAX_TOPIC_BYTES - 1_000 else f"{topic}/{key}"

    def component(self, name: str) -> str:
        return f"{self._prefix}/components/{level(name)}"

    def daemon(self, group: str) -> str:
        return f"{self._prefix}/daemons/{level(group)}"
