"""The limit of failed logins: a caller who guesses is slowed down, one who knows the secret is not."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil

BURST = 10
"""Failures before a caller has to wait."""

PER_SECOND = 1.0
"""Further failures."""

_MAX_CALLERS = 10_000


class LoginLimit:
    """Counts failures per address and client, so that guesses for one client keep no other one behind the same proxy
    from its login. Nothing waits here: a caller beyond the limit is refused before its secret is compared.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()  # number, when

    def wait_s(self, address: str | None, client: str) -> int:
        """Returns the time until the next attempt, in whole seconds; 0 if it is allowed now."""
        excess = self._count((_network(address), client)) - (BURST - 1)
        return ceil(excess / PER_SECOND) if excess > 0 else 0

    def failed(self, address: str | None, client: str) -> None:
        caller = (_network(address), client)
        self._failures[caller] = (self._count(caller) + 1, self._now())
        self._failures.move_to_end(caller)
        while len(self._failures) > _MAX_CALLERS:
            self._failures.popitem(last=False)

    def _count(self, caller: tuple[str, str]) -> float:
        number, since = self._failures.get(caller, (0.0, 0.0))
        return max(0.0, number - (self._now() - since) * PER_SECOND)


def _network(address: str | None) -> str:
    """Returns an IPv4 address, or the /64 that one host can choose its IPv6 addresses from."""
    try:
        found = ip_address(address or "")
    except ValueError:
        return ""
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return str(ip_network((int(found) >> 64 << 64, 64)))
    return str(found)
