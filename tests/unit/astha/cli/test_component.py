"""`astha component new`: which names and directories it accepts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from astha.cli.root import main


def new(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["component", "new", *arguments])


@pytest.mark.parametrize("options", [[], ["--durable"]])
def test_it_writes_a_package_with_its_test(tmp_path: Path, options: list[str]) -> None:
    result = new("topic_sizes", "--directory", str(tmp_path), *options)
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "topic_sizes").iterdir()} == {
        "__init__.py",
        "test_topic_sizes.py",
        "subscriptions.yaml",
    }
    assert "class TopicSizes(Component):" in (tmp_path / "topic_sizes" / "__init__.py").read_text()
    assert "use: topic_sizes:create" in result.output


@pytest.mark.parametrize("name", ["Topic", "9lives", "topic-sizes", "../up", "class", "_x", "x_", "é", ""])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    result = new(name, "--directory", str(tmp_path))
    assert result.exit_code == 2
    assert f"{name!r} can't be a component's name: use lower-case letters" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "astha", "pydantic"])
def test_the_name_of_an_installed_module_is_refused(tmp_path: Path, name: str) -> None:
    result = new(name, "--directory", str(tmp_path))
    assert result.exit_code == 2
    assert f"{name!r} is the name of an installed module" in result.output


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    existing = tmp_path / "topic_sizes"
    existing.mkdir()
    result = new("topic_sizes", "--directory", str(tmp_path))
    assert result.exit_code == 2
    assert f"{existing} exists already: choose another name" in result.output
    assert list(existing.iterdir()) == []


def test_an_absent_directory_is_named(tmp_path: Path) -> None:
    result = new("topic_sizes", "--directory", str(tmp_path / "absent"))
    assert result.exit_code == 2
    assert f"there is no directory {tmp_path}/absent: create it" in result.output


def test_a_directory_that_can_not_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = new("topic_sizes", "--directory", str(tmp_path / "file"))
    assert result.exit_code == 2


def test_the_help_has_an_example() -> None:
    result = new("--help")
    assert result.exit_code == 0
    assert "astha component new topic_sizes --directory plugins" in result.output
