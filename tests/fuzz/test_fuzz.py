"""Fuzzes every reader of outside input: two seconds each here, longer with `make fuzz`."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.runner import FEWEST, fuzz


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pgoutput", "blocks", "yaml_files", "rows", "stream_records"])
def test_only_the_promised_errors_come_out(name: str) -> None:
    cases = fuzz(name, 2.0)
    assert os.environ.get("FUZZ_CASE") or cases >= FEWEST
