"""What happens inside a Spark task: the files of one group become a few new ones.

In: a `MergeTask`, which is all that a worker knows. Out: files in storage, and a `MergeResult` that proves what is in
them. Guaranteed: what was counted and checksummed is what is stored. Knows no Spark and no registry.
"""

from components.compactor.merge.engine import merge
from components.compactor.merge.inspection import BadFile, inspect
from components.compactor.merge.task import BadInput, MergeFailed, MergeInput, MergeResult, MergeTask, Strategy

__all__ = [
    "BadFile",
    "BadInput",
    "MergeFailed",
    "MergeInput",
    "MergeResult",
    "MergeTask",
    "Strategy",
    "inspect",
    "merge",
]
