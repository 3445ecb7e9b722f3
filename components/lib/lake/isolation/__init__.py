"""Child processes for work on untrusted bytes: Arrow aborts its process at some damaged Parquet footers.

In: the name of a function, its argument, a time limit. Out: its result, or an error that says how the process ended.
Guaranteed: this process survives whatever the bytes do to a child process; a child ends with its parent.
"""

from components.lib.lake.isolation.child_pool import (
    ChildDied,
    ChildFailed,
    ChildNotStarted,
    ChildPool,
    ChildRaised,
    shared_child_pool,
)

__all__ = ["ChildDied", "ChildFailed", "ChildRaised", "ChildPool", "ChildNotStarted", "shared_child_pool"]
