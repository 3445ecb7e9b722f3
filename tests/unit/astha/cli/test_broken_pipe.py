"""`astha ... | head` ends without a word."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.integration.astha.processes import ROOT


def test_a_reader_that_has_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "astha.cli", "settings", "--markdown"],
            cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=300,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")
