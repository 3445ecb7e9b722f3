from __future__ import annotations

import os
import shutil

import pytest

from astha.cli.table import cut, fitted, print_rows


def test_rows_are_aligned_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("name", "rows"), [["a", "1,000"], ["longer", "2"]], right=("rows",))
    assert capsys.readouterr().out == "name     rows\na       1,000\nlonger      2\n"


def test_is_wide_if_piped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_rows(("name",), [["x" * 200]])
    assert "x" * 200 in capsys.readouterr().out


def test_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((40, 24)))
    print_rows(("name", "rows", "reason"), [["orders", "1,000,000", "small files: " * 10]], right=("rows",))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 40
    assert lines[1].startswith("orders  1,000,000  small files")
    assert lines[1].endswith("…")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (36, ["component  state  lag  drops  queued", "updater    live     0      0       3"]),
        (35, ["component  state  lag  queued", "updater    live     0       3"]),
        (28, ["component  state  lag", "updater    live     0"]),
        (18, ["compo…  state  lag", "updat…  live     0"]),
    ],
)
def test_a_narrow_terminal_gets_fewer_columns_first_those_with_only_zeros(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, expected: list[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
    numbers = ("lag", "drops", "queued")
    rows = [["updater", "live", "0", "0", "3"]]
    print_rows(("component", "state", *numbers), rows, right=numbers, optional=("queued", "drops"))
    assert capsys.readouterr().out.splitlines() == expected


def test_the_widest_columns_are_reduced_and_numbers_are_not() -> None:
    assert fitted([10, 30, 20], [False, False, True], 54) == [10, 20, 20]
    assert fitted([10, 10], [False, False], 80) == [10, 10]
    assert fitted([30, 30], [False, False], 4) == [6, 6]
    assert fitted([30], [True], 4) == [30]


def test_cut() -> None:
    assert [cut("abcdef", width) for width in (6, 5, 1, 0)] == ["abcdef", "abcd…", "…", "…"]
