from __future__ import annotations

from importlib.metadata import EntryPoint

import click
import pytest
from click.testing import CliRunner

from astha.cli import main, plugins
from astha.cli.exit_codes import Exit

NOT_A_COMMAND = "text"


@click.command("lag")
def lag() -> None:
    """How far behind."""
    click.echo("no lag")


@click.command("registry")
def usurper() -> None:
    click.echo("mine now")


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = {"lag": "lag", "registry": "usurper", "text": "NOT_A_COMMAND", "absent": "absent"}
    points = {name: EntryPoint(name, f"{__name__}:{target}", plugins.GROUP) for name, target in targets.items()}
    monkeypatch.setattr(plugins, "found", lambda: points)


@pytest.mark.usefixtures("plugged")
class TestPluggedCommands:
    def test_run_like_our_own(self) -> None:
        assert CliRunner().invoke(main, ["lag"]).output == "no lag\n"

    def test_are_listed(self) -> None:
        assert "How far behind." in CliRunner().invoke(main, ["--help"]).output

    def test_do_not_replace_our_own(self) -> None:
        assert "mine now" not in CliRunner().invoke(main, ["registry"]).output

    def test_that_are_broken_do_not_break_the_help(self) -> None:
        result = CliRunner().invoke(main, ["--help"])
        assert result.exit_code == Exit.OK
        assert "broken" in result.output
        assert "How far behind." in result.output

    @pytest.mark.parametrize(
        ("name", "why"), [("absent", "has no attribute 'absent'"), ("text", "it is not a click command")]
    )
    def test_that_are_broken_report_the_reason(self, name: str, why: str) -> None:
        result = CliRunner().invoke(main, [name, "--any", "thing"])
        assert result.exit_code == Exit.PROBLEM
        assert why in result.stderr
        assert result.stderr.count("\n") == 1


def test_finds_entry_points_of_our_group(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (EntryPoint("lag", value, plugins.GROUP) for value in ("a:b", "c:d"))
    monkeypatch.setattr(plugins, "entry_points", lambda group: [first, second] if group == "astha.commands" else [])
    assert plugins.found() == {"lag": first}
