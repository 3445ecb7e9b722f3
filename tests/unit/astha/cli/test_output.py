from __future__ import annotations

import pytest

from astha.cli.output import print_pairs, print_rows, table_progress, time_text
from astha.quantities import format_size


def test_progress_without_a_terminal_is_a_line_for_each_table_that_has_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with table_progress() as progress:
        for done in (0, 500, 1_000, 1_500):
            progress("topics", done, 1_500)
        progress("agents", 0, 0)
    captured = capsys.readouterr()
    assert captured.err == "topics: 1,500 of 1,500 rows\n"
    assert captured.out == ""


def test_quiet_progress_without_a_terminal_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with table_progress(quiet=True) as progress:
        progress("topics", 1, 1)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal_goes_to_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    with table_progress() as progress:
        progress("topics", 0, 10)
        progress("topics", 10, 10)
    captured = capsys.readouterr()
    assert "topics" in captured.err
    assert "10/10" in captured.err
    assert captured.out == ""


def test_pairs_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs({"a": "1", "long": "2"})
    assert capsys.readouterr().out == "a     1\nlong  2\n"


def test_rows_are_aligned_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("name", "rows"), [["a", "1,000"], ["longer", "2"]], right=("rows",))
    assert capsys.readouterr().out == "name     rows\na       1,000\nlonger      2\n"


def test_sizes_and_times() -> None:
    assert [format_size(number) for number in (0, 1023, 1024, 5 * 1024**3, 9 * 1024**6)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "5.0 GiB", "9216.0 PiB"
    ]  # fmt: skip
    assert time_text(1_700_000_000_999) == "2023-11-14 22:13:20 UTC"
