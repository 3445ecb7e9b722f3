from __future__ import annotations

from pathlib import Path

import pytest

from registry import embedded_postgres
from registry.embedded_postgres import BIN_SETTING, EmbeddedPostgres, find_binaries, why_not_runnable
from registry.errors import Unavailable


def _programs(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return directory


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv(BIN_SETTING, raising=False)
    monkeypatch.setattr(embedded_postgres, "_system_directories", lambda: iter(()))
    monkeypatch.setattr(embedded_postgres, "_packaged_directories", lambda: iter(()))
    return monkeypatch


def test_binaries_are_searched_in_setting_system_package(nothing: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packaged, system, explicit = (_programs(tmp_path / name) for name in ("packaged", "system", "explicit"))
    nothing.setattr(embedded_postgres, "_packaged_directories", lambda: iter([packaged]))
    assert find_binaries() == packaged
    nothing.setattr(embedded_postgres, "_system_directories", lambda: iter([tmp_path / "gone", system]))
    assert find_binaries() == system
    nothing.setenv(BIN_SETTING, str(explicit))
    assert find_binaries() == explicit


def test_a_wrong_setting_is_an_error(nothing: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nothing.setattr(embedded_postgres, "_system_directories", lambda: iter([_programs(tmp_path / "system")]))
    nothing.setenv(BIN_SETTING, str(tmp_path / "empty"))
    with pytest.raises(Unavailable, match=f"{BIN_SETTING}=.*empty"):
        find_binaries()


@pytest.mark.usefixtures("nothing")
def test_without_binaries_the_message_says_what_to_do() -> None:
    with pytest.raises(Unavailable, match=rf"set {BIN_SETTING}, install PostgreSQL, .*astha\[embedded\]"):
        find_binaries()


def test_a_directory_without_initdb_does_not_count(nothing: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (_programs(tmp_path / "client") / "initdb").unlink()
    nothing.setattr(embedded_postgres, "_system_directories", lambda: iter([tmp_path / "client"]))
    with pytest.raises(Unavailable):
        find_binaries()


def test_programs_that_do_not_run_are_noticed_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = _programs(tmp_path / "bin")
    assert why_not_runnable(programs) is None
    (programs / "postgres").write_text("#!/bin/sh\necho error while loading shared libraries: libicu >&2\nexit 127\n")
    assert why_not_runnable(programs) == f"{programs}/postgres: error while loading shared libraries: libicu"
    (programs / "postgres").write_text("#!/nonexistent\n")
    assert "No such file" in (why_not_runnable(programs) or "")

    def refuse() -> None:
        raise Unavailable("there is no user to run it as")

    monkeypatch.setattr(embedded_postgres, "_unprivileged_account", refuse)
    assert why_not_runnable(programs) == "there is no user to run it as"


def test_a_failed_start_leaves_no_directory(nothing: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nothing.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(Unavailable):
        EmbeddedPostgres()
    assert list(tmp_path.iterdir()) == []
