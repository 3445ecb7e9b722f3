from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from astha.cli.exit_codes import Exit, failure_of
from astha.client import NoDaemon, Refused
from astha.errors import AddressTaken, ConfigError, SourceLost
from astha.redaction import Redactor
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound, SchemaMismatch, Unavailable

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Invalid("topic", "", "must not be empty"), Exit.USAGE),
        (Unavailable("no answer"), Exit.UNAVAILABLE),
        (SchemaMismatch("too old"), Exit.PROBLEM),
        (Conflict("not empty"), Exit.PROBLEM),
        (NotFound("no such topic"), Exit.PROBLEM),
        (AlreadyExists("topic x"), Exit.PROBLEM),
        (ConfigError("unknown setting"), Exit.USAGE),
        (SourceLost("gone"), Exit.UNAVAILABLE),
        (AddressTaken("port 1"), Exit.UNAVAILABLE),
        (NoDaemon("no daemon answers"), Exit.UNAVAILABLE),
        (Refused("no", 403), Exit.PROBLEM),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (ZeroDivisionError("division by zero"), Exit.INTERNAL),
    ],
)
def test_every_error_has_its_code(error: BaseException, code: Exit) -> None:
    assert failure_of(error).exit_code == code


def test_a_message_of_several_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    failure_of(Unavailable("connection refused\n\tIs the server running?\n")).show()
    assert capsys.readouterr().err == "astha: connection refused Is the server running?\n"


def test_an_internal_error_tells_how_to_get_a_traceback() -> None:
    assert failure_of(KeyError("x")).message == "internal error: KeyError: 'x' (set ASTHA_TRACEBACK=1 for a traceback)"


def test_an_internal_error_is_raised_with_its_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_TRACEBACK", "1")
    with pytest.raises(KeyError):
        failure_of(KeyError("x"))


def test_known_secrets_are_redacted_in_every_error() -> None:
    redact = Redactor(["open sesame"])
    for error in (ValueError('bad: "open sesame"'), Unavailable("no: open%20sesame"), ConfigError("open sesame")):
        assert "sesame" not in failure_of(error, redact).message


def test_pydantic_errors_are_shown_without_values_and_links() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, int]).validate_python({"depth": "open sesame"})
    words = failure_of(caught.value).message
    assert words.startswith("internal error: ValidationError: depth: Input should be a valid integer")
    assert not [part for part in ("sesame", "https://", "input_value") if part in words]


@pytest.mark.parametrize(
    ("module", "argument"), [("click", "status"), ("astha.client", "status"), ("components.command_help", "--help")]
)
def test_an_interrupt_during_imports_is_one_line(tmp_path: Path, module: str, argument: str) -> None:
    """Ctrl-C right after the start of a command is raised within an import."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "astha.cli", argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "astha: interrupted\n")
