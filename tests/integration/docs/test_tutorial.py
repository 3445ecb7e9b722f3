"""docs/tutorial.md: its blocks, run by bash as one session, in the order in which a reader types them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from deploy.demo import machine
from deploy.demo.story import Addresses
from registry.embedded_postgres import free_port
from tests.code_blocks import code_blocks
from tests.integration.astha.processes import ROOT

PAGE = ROOT / "docs" / "tutorial.md"

pytestmark = pytest.mark.slow


def test_every_block_of_the_tutorial_works(project_directory: Path) -> None:
    blocks = code_blocks(PAGE)
    assert {block.language for block in blocks} == {"shell"}
    addresses = Addresses(server=free_port(), catalog=free_port())
    stop = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
    script = "\n".join(["set -euo pipefail", stop, *(block.text for block in blocks)])
    ended = subprocess.run(
        ["/bin/bash", "-c", script.replace(str(Addresses().catalog), str(addresses.catalog))],
        cwd=project_directory, capture_output=True, text=True, check=False, timeout=900,
        env=machine.environment(project_directory, addresses),
    )  # fmt: skip
    log = project_directory / "shop" / "up.log"
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\n{log.read_text() if log.exists() else ''}"
    shown = ended.stdout
    for expected in (
        "ready     yes", "shop.orders: 1,000 rows in 2 files", " 3000 rows", "is rolled back to snapshot",
        "its storage does not answer", "5,000 records", "\n5000\n",
    ):  # fmt: skip
        assert expected in shown, f"{expected!r} is not in:\n{shown}"
    assert len(re.findall(r"│ (?:eu|us) +│ +1500 │", shown)) == 2
    assert shown.count("equal: 1 table") == 2
    assert shown.rindex("3,001 rows") > shown.index("its storage does not answer")
    assert log.read_text().endswith("stopped\n")
