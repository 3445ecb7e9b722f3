"""Ids of traces, derived from commits: every daemon that receives a commit, also after a restart, uses the same one."""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

from astha.events import Commit
from astha.events.traceparent import TraceParent

MULTIPLIER = 0x9E3779B97F4A7C15
"""2**64 / golden ratio: products of it, modulo 2**64, are evenly spread, also for positions at regular distances."""

MASK = (1 << 64) - 1
_FIELDS = Struct(">qQq")


def spread(position: int) -> int:
    """Returns an evenly spread number of 64 bits. A position is sampled if it is below the ratio's part of 2**64."""
    return position * MULTIPLIER & MASK


def trace_id_of(commit: Commit) -> int:
    """The low 64 bits are those that `spread` returns: OpenTelemetry's samplers by ratio compare them too."""
    fields = _FIELDS.pack(commit.transaction, commit.position & MASK, commit.committed_at)
    high = int.from_bytes(blake2b(fields, digest_size=8).digest(), "big")
    return (high or 1) << 64 | spread(commit.position)


def unsampled(commit: Commit) -> TraceParent:
    """Returns what is sent with a commit that is not traced: receivers do not trace it either."""
    trace_id = trace_id_of(commit)
    return TraceParent(trace_id, trace_id >> 64, sampled=False)
