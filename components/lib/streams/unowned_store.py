"""A store that is somebody else's: whoever closes it closes nothing."""

from __future__ import annotations

from registry.forwarding import ForwardingStore


class _BorrowedStore(ForwardingStore):
    async def close(self) -> None:
        """The lender does."""
