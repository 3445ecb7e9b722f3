from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astha.quantities import format_duration, format_size, parse_duration_ms, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("17", 17), ("17 b", 17), ("10MB", 10_000_000), ("10mib", 10 << 20), ("10M", 10 << 20),
        (" 2 GiB ", 2 << 30), ("1TB", 10**12), ("1t", 1 << 40),
        ("", None), ("MB", None), ("1.5MB", None), ("-1", None), ("10 parsecs", None), ("1" * 19, None),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("500ms", 500), ("90s", 90_000), ("15 m", 900_000), ("12h", 43_200_000), ("7D", 604_800_000),
        ("4w", 2_419_200_000), ("5", None), ("", None), ("1y", None), ("-3s", None),
    ],
)  # fmt: skip
def test_durations(text: str, duration: int | None) -> None:
    assert parse_duration_ms(text) == duration


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (10 << 20, "10.0 MiB"), (1 << 60, "1024.0 PiB")],
)
def test_size_text(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [(0, "0 ms"), (1_500, "1,500 ms"), (1_000, "1 second"), (7_200_000, "2 hours"), (86_400_000, "1 day")],
)
def test_duration_text(duration: int, text: str) -> None:
    assert format_duration(duration) == text


@given(st.text(max_size=30))
def test_any_text_is_a_quantity_or_none(text: str) -> None:
    assert parse_size(text) is None or parse_size(text) >= 0  # type: ignore[operator]
    assert parse_duration_ms(text) is None or parse_duration_ms(text) >= 0  # type: ignore[operator]
