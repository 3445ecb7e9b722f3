"""`astha registry` on SQLite files, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from astha.cli import main
from astha.cli.exit_codes import Exit
from registry.engines import StoreSettings, parse_url, sync_engine


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASTHA_REGISTRY", raising=False)


def astha(*arguments: str, code: Exit = Exit.OK, environment: dict[str, str] | None = None) -> Result:
    result = CliRunner(env=environment).invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result


def test_version_and_help() -> None:
    assert astha("--version").output.startswith("astha ")
    assert "Exit codes:" in astha("--help").output
    assert "ASTHA_REGISTRY" in astha("registry", "status", "--help").output


def test_status_before_and_after_migrating() -> None:
    missing = astha("registry", "status", code=Exit.PROBLEM)
    assert "missing" in missing.stdout
    assert missing.stderr == "astha: sqlite:///registry.db holds no registry: run `astha registry migrate`\n"
    assert not Path("registry.db").exists()

    assert "migrated from nothing to 0" in astha("registry", "migrate").stdout
    assert "already" in astha("registry", "migrate").stdout
    assert "current" in astha("registry", "status").stdout


def test_json_is_one_object_and_keeps_the_exit_code() -> None:
    result = astha("registry", "status", "--json", code=Exit.PROBLEM)
    assert json.loads(result.stdout)["state"] == "missing"
    assert result.stderr == ""
    before = json.loads(astha("registry", "migrate", "--json").stdout)
    assert before["before"] is None
    assert before["found"] == before["expected"]
    assert json.loads(astha("registry", "status", "--json").stdout)["state"] == "current"


@pytest.mark.parametrize(
    "url", ["postgresql://u:hidden@127.0.0.1:1/db?sslmod=require", "sqlite:///registry.db?sslmod=require"]
)
@pytest.mark.parametrize("command", [("registry", "migrate"), ("check",)])
def test_an_unknown_parameter_in_the_url_is_wrong_usage(url: str, command: tuple[str, ...]) -> None:
    found = astha(*command, "--registry", url, code=Exit.USAGE)
    assert "sslmod" in found.stderr
    assert "hidden" not in found.stderr


def test_the_registry_comes_from_the_option_or_the_environment() -> None:
    astha("registry", "migrate", "--registry", "sqlite:///option.db")
    astha("registry", "migrate", environment={"ASTHA_REGISTRY": "sqlite:///environment.db"})
    assert {path.name for path in Path().glob("*.db")} == {"option.db", "environment.db"}


def test_a_newer_schema_is_refused() -> None:
    astha("registry", "migrate")
    _execute("UPDATE registry_version SET version_num = '9999', compatible_from = '9998'")
    for command in ("status", "migrate"):
        result = astha("registry", command, code=Exit.PROBLEM)
        assert "schema 9999, which this version of Astha does not know" in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_downgrade_needs_confirmation() -> None:
    astha("registry", "migrate")
    refused = astha("registry", "migrate", "--revision", "base", code=Exit.USAGE)
    assert "--yes" in refused.stderr
    assert "current" in astha("registry", "status").stdout
    assert "to nothing" in astha("registry", "migrate", "--revision", "base", "--yes").stdout


@pytest.mark.parametrize(
    "url",
    ["nonsense", "sqlite://", "sqlite:///missing/directory/r.db", "mysql://u:secret@h/d", "postgresql:/u:secret@h/d"],
)
def test_a_bad_url_is_bad_input_and_shows_no_password(url: str) -> None:
    result = astha("registry", "migrate", "--registry", url, code=Exit.USAGE)
    assert result.stderr.startswith("astha: registry URL")
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.output


def test_a_file_that_is_not_a_database_is_named() -> None:
    Path("registry.db").write_bytes(b"not a database at all" * 100)
    assert "registry.db" in astha("registry", "status", code=Exit.UNAVAILABLE).stderr


def test_an_unknown_revision_is_bad_input() -> None:
    assert "unknown" in astha("registry", "migrate", "--revision", "7", code=Exit.USAGE).stderr


def test_copy_migrates_the_target_and_carries_rows_over() -> None:
    astha("registry", "migrate")
    _execute("INSERT INTO topics VALUES ('events', 1, NULL, '{}', 1, 1)")
    result = astha("registry", "copy", "sqlite:///registry.db", "sqlite:///target.db", "--json")
    assert json.loads(result.stdout)["rows"]["topics"] == 1
    assert result.stderr == ""
    again = astha("registry", "copy", "sqlite:///registry.db", "sqlite:///target.db", code=Exit.PROBLEM)
    assert "is not empty: it has topics" in again.stderr
    assert "has all 1 rows" in astha("registry", "copy", "sqlite:///target.db", "sqlite:///third.db").stdout


def test_copy_without_migrating_needs_a_migrated_target() -> None:
    astha("registry", "migrate")
    arguments = ("registry", "copy", "sqlite:///registry.db", "sqlite:///target.db", "--no-migrate")
    assert "holds no registry" in astha(*arguments, code=Exit.PROBLEM).stderr
    assert not Path("target.db").exists()


def test_copy_onto_itself_is_wrong_usage() -> None:
    astha("registry", "migrate")
    url = "sqlite:///registry.db"
    assert "the same registry" in astha("registry", "copy", url, url, code=Exit.USAGE).stderr


def test_copy_from_a_missing_registry_creates_no_target() -> None:
    astha("registry", "copy", "sqlite:///nothing.db", "sqlite:///target.db", code=Exit.PROBLEM)
    assert list(Path().glob("*.db")) == []


def _execute(statement: str) -> None:
    with sync_engine(parse_url("sqlite:///registry.db"), StoreSettings()).connect() as connection:
        connection.execute(text(statement))


def test_an_unknown_revision_is_refused_before_confirmation() -> None:
    astha("registry", "migrate")
    refused = astha("registry", "migrate", "--revision", "9999", code=Exit.USAGE)
    assert refused.stderr.startswith("astha: revision = '9999': is unknown; known are 0001")


@pytest.mark.parametrize("arguments", [["status", "--registry", "{}"], ["copy", "sqlite:///here.db", "{}"]])
def test_no_error_shows_the_password_of_a_url(arguments: list[str]) -> None:
    astha("registry", "migrate", "--registry", "sqlite:///here.db")
    for url in ("postgresql://me@127.0.0.1:1/d?password=open-sesame&nosuch=open-sesame", "mysql://me:open-sesame@h/d"):
        result = CliRunner().invoke(main, ["registry", *(part.format(url) for part in arguments)])
        assert result.exit_code != Exit.OK
        assert "sesame" not in result.stderr, result.stderr


@pytest.mark.parametrize(("chosen", "mode"), [({}, 0o600), ({"ASTHA_REGISTRY__FILE_MODE": "0640"}, 0o640)])
def test_a_new_file_has_the_mode_of_the_settings(chosen: dict[str, str], mode: int) -> None:
    astha("registry", "migrate", environment=chosen)
    astha("registry", "copy", "sqlite:///registry.db", "sqlite:///copy.db", environment=chosen)
    assert {path.stat().st_mode & 0o777 for path in Path().glob("*.db")} == {mode}
