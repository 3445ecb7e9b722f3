"""`astha completion`: bash, zsh and fish complete with the printed scripts."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from astha.cli import main
from astha.cli.completion import SHELLS
from tests.integration.astha.processes import ROOT
from tests.servers.packages import find_program
from tests.unit.astha.cli.test_imports import HEAVY_FOR_HELP, packages

ASTHA = f"""#!{sys.executable}
from astha.cli import main
main(prog_name="astha")
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With an `astha` in PATH that runs this code."""
    program = tmp_path / "bin" / "astha"
    program.parent.mkdir()
    program.write_text(ASTHA)
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def script(shell: str) -> str:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0, result.output
    return result.output


BASH = """
{script}
complete -p astha >/dev/null || exit 9
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_astha_completion astha
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def complete_in_bash(environment: dict[str, str], words: str) -> list[str]:
    bash = shutil.which("bash")
    assert bash is not None, "install bash"
    text = BASH.format(script=script("bash"), words=words)
    ended = subprocess.run([bash, "--norc", "-c", text], env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


EMPTY = "''"
CASES = [
    ("astha re", ["refresh", "registry", "resume"]),
    ("astha tables d", ["describe", "drop"]),
    (f"astha completion {EMPTY}", list(SHELLS)),
    ("astha status --wat", ["--watch"]),
    ("astha compaction run x --strategy z", ["zorder"]),
]


@pytest.mark.parametrize(("words", "expected"), CASES)
def test_bash_completes(environment: dict[str, str], words: str, expected: list[str]) -> None:
    assert complete_in_bash(environment, words) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("words", "expected"), CASES[::2])
def test_fish_completes(environment: dict[str, str], tmp_path: Path, words: str, expected: list[str]) -> None:
    fish = find_program("fish", "fish")
    (tmp_path / "astha.fish").write_text(script("fish"))
    command = f"source {tmp_path}/astha.fish; complete -C {shlex.quote(words.removesuffix(EMPTY))}"
    ended = subprocess.run(
        [fish.path, "--no-config", "-c", command],
        env={**environment, **fish.environment, "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert [line.split("\t")[0] for line in ended.stdout.splitlines()] == sorted(expected), ended.stderr


ZSH = """
module_path+=({modules})
compdef() {{ :; }}
_describe() {{ print -rl -- "${{(@P)3}}"; }}
compadd() {{ print -rl -- "${{(@P)5}}"; }}
{script}
words=({words})
CURRENT=${{#words}}
_astha_completion
"""
"""zsh's own functions `_describe` and `compadd` need a terminal; these print the array that they are given."""


@pytest.mark.slow
@pytest.mark.parametrize(("words", "expected"), CASES[::2])
def test_zsh_completes(environment: dict[str, str], words: str, expected: list[str]) -> None:
    zsh = find_program("zsh", "zsh")
    modules = " ".join(map(str, zsh.path.parents[1].glob("usr/lib/*/zsh/*")))  # of an unpacked package
    text = ZSH.format(script=script("zsh"), words=words, modules=modules)
    ended = subprocess.run(
        [zsh.path, "-f", "-c", text], env={**environment, **zsh.environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert [line.split(":")[0] for line in ended.stdout.splitlines()] == expected, ended.stderr


def test_completing_a_name_imports_no_command(environment: dict[str, str]) -> None:
    program = "import json, sys\nfrom astha.cli import main\ntry:\n    main(prog_name='astha')\nfinally:\n"
    ended = subprocess.run(
        [sys.executable, "-c", program + "    sys.stderr.write(json.dumps(sorted(sys.modules)))"],
        env={**environment, "_ASTHA_COMPLETE": "bash_complete", "COMP_WORDS": "astha ", "COMP_CWORD": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "plain,tables" in ended.stdout
    found = set(json.loads(ended.stderr[ended.stderr.index("[") :]))
    assert packages(found) & HEAVY_FOR_HELP == set()


def test_an_unknown_shell_is_refused() -> None:
    with pytest.raises(click.UsageError):
        main.main(["completion", "tcsh"], standalone_mode=False)
