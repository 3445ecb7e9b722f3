"""What a writer has done since it was opened."""

from __future__ import annotations

from collections import deque

import msgspec

_REMEMBERED = 10_000


class WriterStatistics(msgspec.Struct):
    appends: int = 0  # answered
    records: int = 0
    failures: int = 0  # appends that got an error
    duplicates: int = 0  # appends that were known already
    windows: int = 0
    objects: int = 0  # registered
    segments: int = 0
    stored_bytes: int = 0
    retries: int = 0  # of registrations
    waiting_bytes: int = 0  # in memory now
    register_s: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=_REMEMBERED))  # the last ones
    upload_s: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=_REMEMBERED))
