"""The compactor: small files of a partition become right-sized ones, and never at the cost of a row.

In: `table_files` and `table_stats`. Out: swaps of files in the registry, and a decision kept for each.
Guaranteed: rows and checksums of what comes out equal those of what went in, or nothing is swapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from astha.subscribers import ComponentContext

if TYPE_CHECKING:
    from components.compactor.subscriber import Compactor

__all__ = ["create"]


def create(settings: Mapping[str, Any], context: ComponentContext) -> Compactor:
    """ValueError (pydantic's) if the settings are not this component's."""
    # Here, because `astha --help` loads this package's commands, but should not wait for Arrow.
    from components.compactor.settings import CompactorSettings
    from components.compactor.spark.executor import open_executor
    from components.compactor.subscriber import Compactor

    chosen = CompactorSettings.model_validate(dict(settings))
    return Compactor(chosen, context, partial(open_executor, chosen.spark, context.lake, context.concealment))
