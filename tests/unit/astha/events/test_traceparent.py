"""The header `traceparent`, as https://www.w3.org/TR/trace-context/ says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astha.events.traceparent import TraceParent, read_traceparent

EXAMPLE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_the_example_of_the_standard() -> None:
    found = read_traceparent(EXAMPLE)
    assert found == TraceParent(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, True)
    assert found.to_header() == EXAMPLE


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_is_read_again(trace_id: int, span_id: int, sampled: bool) -> None:
    context = TraceParent(trace_id, span_id, sampled)
    assert read_traceparent(context.to_header()) == context


@given(st.binary(max_size=80))
def test_no_header_is_an_error(header: bytes) -> None:
    read_traceparent(header)


@pytest.mark.parametrize(("flags", "sampled"), [(b"00", False), (b"01", True), (b"02", False), (b"03", True)])
def test_only_one_flag_says_that_it_is_sampled(flags: bytes, sampled: bool) -> None:
    found = read_traceparent(EXAMPLE[:-2] + flags)
    assert found is not None
    assert found.sampled is sampled


def test_a_later_version_may_have_more() -> None:
    assert read_traceparent(b"01" + EXAMPLE[2:] + b"-more") == read_traceparent(EXAMPLE)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"ff" + EXAMPLE[2:],
        EXAMPLE + b"-more",
        EXAMPLE.upper(),
        b"00-" + b"0" * 32 + EXAMPLE[35:],
        EXAMPLE[:36] + b"0" * 16 + EXAMPLE[52:],
        EXAMPLE + b"\n",
        b"01" + EXAMPLE[2:] + b"-" + b"x" * 300,
    ],
)
def test_a_malformed_header_is_ignored(header: bytes) -> None:
    assert read_traceparent(header) is None
