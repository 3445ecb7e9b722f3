"""The help of `astha topics` loads every command of the group, but no heavy library."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import sys
from astha.cli import main

try:
    main(sys.argv[1:], prog_name="astha")
except SystemExit as end:
    assert not end.code, end.code
print(*sys.modules, file=sys.stderr)
"""
_HEAVY = {"pyspark", "pyarrow", "pyiceberg", "numpy", "pandas", "obstore"}


@pytest.mark.parametrize("arguments", [["topics", "--help"], ["topics", "to-table", "--help"]])
def test_topics_help_does_not_import_spark(arguments: list[str]) -> None:
    result = subprocess.run([sys.executable, "-c", _SCRIPT, *arguments], capture_output=True, text=True, check=True)
    assert "Usage: astha topics" in result.stdout
    assert not _HEAVY & set(result.stderr.split())
