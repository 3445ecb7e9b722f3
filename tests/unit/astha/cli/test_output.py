from __future__ import annotations

import pytest

from astha.cli.output import print_pairs, time_text
from astha.quantities import format_size


def test_pairs_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs({"a": "1", "long": "2"})
    assert capsys.readouterr().out == "a     1\nlong  2\n"


def test_sizes_and_times() -> None:
    assert [format_size(number) for number in (0, 1023, 1024, 5 * 1024**3, 9 * 1024**6)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "5.0 GiB", "9216.0 PiB"
    ]  # fmt: skip
    assert time_text(1_700_000_000_999) == "2023-11-14 22:13:20 UTC"
