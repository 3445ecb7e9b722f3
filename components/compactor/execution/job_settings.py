"""The numbers of a job: how patient it is, and with what."""

from __future__ import annotations

import msgspec


class JobLimits(msgspec.Struct, frozen=True, kw_only=True):
    heartbeat_s: float = 1.0
    stale_after_s: float = 30.0  # without a sign of life, before others take over
    attempts: int = 3  # of a group, when the session dies or storage does not answer
    plans_again: int = 5  # when inputs go away meanwhile
    groups_at_once: int = 1
    retry_wait_s: float = 1.0  # doubles
    merge_timeout_s: float = 600.0  # of a group, and a second more for each MiB of it

    def merge_limit_s(self, size_bytes: int) -> float:
        return self.merge_timeout_s + size_bytes / (1 << 20)

    def stuck_after_s(self, size_bytes: int) -> float:
        """Twice that, as a merge may wait for a free worker; and some time for the swap."""
        return 2 * self.merge_limit_s(size_bytes) + 60.0
