"""Which strategy merges the files of a table. This is the one place that decides it.

A plan asks with the sizes of the files. The merge asks again with the strategy of its task, which gives the same
answer, and then replaces ``copy`` by ``binpack`` if the footers of the files do not allow a copy.
"""

from __future__ import annotations

from typing import NamedTuple

from components.compactor.merge.task import Strategy


class StrategyChoice(NamedTuple):
    strategy: Strategy  # never auto
    why: str


def choose_strategy(
    wanted: Strategy, *, order_columns: int, mean_bytes: int | None = None, copy_above_bytes: int = 0
) -> StrategyChoice:
    """``order_columns`` is the number of columns in the table's `sort_by`; ``mean_bytes`` the mean size of the files.

    A table with `sort_by` is always sorted, or z-ordered by the same columns.
    """
    if order_columns:
        if wanted == "zorder" and order_columns > 1:
            return StrategyChoice("zorder", "the settings say so")
        if wanted == "zorder":
            return StrategyChoice("sort", "zorder needs several columns in sort_by, and the table has one")
        return StrategyChoice("sort", "the table has sort_by")
    match wanted:
        case "sort" | "zorder":
            return StrategyChoice("binpack", f"the settings say {wanted}, but the table has no sort_by")
        case "binpack" | "copy":
            return StrategyChoice(wanted, "the settings say so")
        case "auto" if mean_bytes is None:
            return StrategyChoice("copy", "row groups are copied where that is possible")
        case "auto" if mean_bytes >= copy_above_bytes:
            return StrategyChoice("copy", f"files of {mean_bytes:,} bytes on average can have row groups worth keeping")
        case "auto":
            return StrategyChoice(
                "binpack", f"files of {mean_bytes:,} bytes on average have row groups too small to keep"
            )
