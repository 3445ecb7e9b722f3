"""Extreme values on the command line and in lines of records."""

from __future__ import annotations

import click
import pytest

from components.commands.parameters import DurationParam, SizeParam
from components.commands.topics.record_text import BadLine, read_json
from components.lib.streams.offset_spec import AtTimestamp, parse_offset_spec

MANY = "9" * 5_000


@pytest.mark.parametrize("kind", [DurationParam(), SizeParam()])
@pytest.mark.parametrize("text", [f"{MANY}s", f"{MANY}k", "999999999999999999w", "999999999999999999t", "\u0663s"])
def test_durations_and_sizes_beyond_64_bits_are_refused(kind: DurationParam | SizeParam, text: str) -> None:
    with pytest.raises(click.BadParameter):
        kind.convert(text, None, None)


@pytest.mark.parametrize("text", [MANY, f"-{MANY}d", "9999999999999999999"])
def test_offset_specs_beyond_every_offset_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"beyond every offset|write earliest"):
        parse_offset_spec(text)


def test_a_time_before_the_epoch_is_the_epoch() -> None:
    assert parse_offset_spec("-999999999999d") == AtTimestamp(0)
    assert DurationParam().convert("7d", None, None) == 604_800_000
    assert SizeParam().convert("64KiB", None, None) == 65_536


@pytest.mark.parametrize(
    "line",
    [
        b'{"value": "a", "timestamp": 9223372036854775808}', b'{"value": "a", "timestamp": -9223372036854775809}',
        b'{"value": "a", "partition": -1}', b'{"value": "a", "partition": 2147483648}',
        b'{"value": ' + b"[" * 5_000, b'{"unknown": ' + b"[" * 5_000, b"[" * 100_000, b'{"value": "\\ud800"}',
    ],
)  # fmt: skip
def test_invalid_json_records_are_refused(line: bytes) -> None:
    with pytest.raises(BadLine):
        read_json(line)
