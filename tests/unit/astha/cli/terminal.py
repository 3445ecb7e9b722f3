"""Runs a program whose stderr is a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.integration.astha.processes import ROOT


@dataclass(frozen=True)
class TerminalResult:
    stdout: str
    terminal: str


def run_on_terminal(program: str, directory: Path) -> TerminalResult:
    """Returns what the program prints to stdout, a pipe, and to stderr, a terminal."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=theirs, text=True,
        )  # fmt: skip
    finally:
        os.close(theirs)
    shown = b""
    try:
        while data := _read(ours):
            shown += data
        stdout, _ = process.communicate(timeout=60)
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    return TerminalResult(stdout, shown.decode())


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # Linux: the other end is closed
        return b""
