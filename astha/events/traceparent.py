"""The W3C trace context of a commit, as headers of Kafka and MQTT carry it: https://www.w3.org/TR/trace-context/."""

from __future__ import annotations

import re

import msgspec

HEADER = "traceparent"

_FORM = re.compile(
    rb"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})"
    rb"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?",
    re.DOTALL,
)
_LONGEST = 256
_SAMPLED = 1


class TraceParent(msgspec.Struct, frozen=True, gc=False):
    """A span of any process. Spans below it are recorded only if it is `sampled`."""

    trace_id: int
    span_id: int
    sampled: bool

    def to_header(self) -> bytes:
        return b"00-%032x-%016x-%02x" % (self.trace_id, self.span_id, self.sampled)


def read_traceparent(header: bytes) -> TraceParent | None:
    """Returns None if the header is malformed: it may come from any sender, and is then ignored."""
    found = _FORM.fullmatch(header) if len(header) <= _LONGEST else None
    if found is None or (found["version"] == b"00" and found["more"] is not None):
        return None
    return TraceParent(int(found["trace"], 16), int(found["span"], 16), bool(int(found["flags"], 16) & _SAMPLED))
