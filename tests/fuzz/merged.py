"""A merge with one damaged file among its inputs, in a child process: Arrow may end it."""

from __future__ import annotations

from pathlib import Path

import msgspec
from pyiceberg.transforms import IdentityTransform

from components.compactor.merge import BadInput, MergeInput, MergeTask, merge
from tests.fuzz.parquet_mutations import SCHEMA
from tests.lake import EVERYTHING, order_of, table_schema
from tests.unit.components.compactor.merge.groups import task

ROWS = 24  # of each input
SORTED = table_schema(EVERYTHING, order=order_of((1, IdentityTransform(), "desc last")))
STRATEGIES = ("copy", "binpack", "sort")


class Case(msgspec.Struct, frozen=True):
    directory: str
    paths: list[str]
    sizes: list[int]
    strategy: str

    def task(self) -> MergeTask:
        schema = SORTED if self.strategy == "sort" else SCHEMA
        inputs = [
            MergeInput(Path(path).as_uri(), size, ROWS, 1) for path, size in zip(self.paths, self.sizes, strict=True)
        ]
        return task(
            Path(self.directory), inputs, schema, strategy=self.strategy, copy_above_bytes=0, memory_bytes=256 << 20
        )


def merge_case(argument: bytes) -> bytes:
    """Returns the merged rows, or the path of the file that was reported as bad."""
    try:
        result = merge(msgspec.msgpack.decode(argument, type=Case).task())
    except BadInput as error:
        return error.path.encode()
    except MemoryError:
        return b"memory"
    assert result.proven
    return str(result.rows_out).encode()
