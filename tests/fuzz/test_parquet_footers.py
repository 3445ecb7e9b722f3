"""Damaged footers are read, or refused with the file's name; they never end the process that asks."""

from __future__ import annotations

import random
import time

from components.compactor.merge.footer import Footer
from components.compactor.merge.task import BadInput
from components.lib.lake.files.footers import BadFooter, read_arrow_schema, read_statistics
from tests.fuzz.budget import seconds, seed
from tests.fuzz.parquet_mutations import SCHEMA, damaged, stored

DATA = stored(SCHEMA, 0)


def test_by_arrow_in_a_child_process() -> None:
    chance, end = random.Random(seed()), time.monotonic() + seconds(3.0)
    read = refused = 0
    while time.monotonic() < end or not (read and refused):
        data = damaged(DATA, chance)
        try:
            read_arrow_schema(data)
            read_statistics(data, SCHEMA.iceberg)
        except BadFooter:
            refused += 1
        else:
            read += 1


def test_by_the_compactor() -> None:
    chance, end = random.Random(seed()), time.monotonic() + seconds(2.0)
    read = refused = 0
    while time.monotonic() < end or not (read and refused):
        data = damaged(DATA, chance)
        try:
            footer = Footer.of(data, len(data), "file:///a.parquet")
        except BadInput:
            refused += 1
            continue
        for chunk in footer.chunks():
            assert 0 <= chunk.start <= chunk.end
        read += 1
