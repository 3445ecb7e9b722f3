"""docs/tutorial.md: its blocks, run by bash as one session, in the order in which a reader types them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from registry.embedded_postgres import free_port
from tests.code_blocks import code_blocks
from tests.integration.astha.processes import ROOT

PAGE = ROOT / "docs" / "tutorial.md"

pytestmark = pytest.mark.slow


def test_every_block_of_the_tutorial_works(tmp_path: Path) -> None:
    blocks = code_blocks(PAGE)
    assert {block.language for block in blocks} == {"shell"}
    programs = tmp_path / "bin"
    programs.mkdir()
    astha = programs / "astha"
    astha.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m astha.cli "$@"\n')
    astha.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    stop = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
    script = "\n".join(["set -euo pipefail", stop, *(block.text for block in blocks)])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ASTHA_")}
    ended = subprocess.run(
        ["/bin/bash", "-c", script],
        cwd=work, capture_output=True, text=True, check=False, timeout=300,
        env={**inherited, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
             "ASTHA_SERVER__PORT": str(free_port()), "RUNTIME_DIRECTORY": str(tmp_path / "run")},
    )  # fmt: skip
    log = work / "daemon.log"
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\n{log.read_text() if log.exists() else ''}"
    shown = ended.stdout
    for expected in (
        "ready     yes", "shop.orders: 3 rows", "equal: 1 tables", "is rolled back to snapshot", "1,000 records",
        "\n1000\n", "iceberg_updater is paused",
    ):  # fmt: skip
        assert expected in shown, f"{expected!r} is not in:\n{shown}"
    assert shown.rindex("equal: 1 tables") > shown.index("iceberg_updater is paused")
