"""What happens inside a Spark task: the files of one group are merged into a few new ones.

In: a `MergeTask`, which is all that a worker knows. Out: files in storage, and a `MergeResult` that proves their
content. Guaranteed: what was counted and checksummed is what is stored. Uses neither Spark nor the registry.
"""

from components.compactor.merge.engine import merge
from components.compactor.merge.inspection import UnmergeableFile, inspect
from components.compactor.merge.strategy import choose_strategy
from components.compactor.merge.task import (
    BadInput,
    DeleteInput,
    MergeFailed,
    MergeInput,
    MergeResult,
    MergeTask,
    Strategy,
)

__all__ = [
    "BadInput",
    "DeleteInput",
    "MergeFailed",
    "MergeInput",
    "MergeResult",
    "MergeTask",
    "Strategy",
    "UnmergeableFile",
    "choose_strategy",
    "inspect",
    "merge",
]
