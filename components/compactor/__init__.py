"""The compactor: merges small files of a partition into files of the target size, without losing a row.

In: `table_files` and `table_stats`. Out: swaps of files in the registry, and a journal of all decisions.
Guaranteed: rows and checksums of the new files equal those of the old ones, or nothing is swapped.

A decision becomes a swap along one path, one package after the other:

    decision   scheduling    counters, kept by events, choose a partition; nothing is read
    plan       planning      the partition's rows are read: which files, in which groups, by which strategy
    job        execution     one partition under one claim: its groups, a few in parallel, with retries
    group      execution     files that one task merges into a few new ones: upload intents, task, swap
    task       merge         what a worker does: merge the files of a group and prove the result; `spark` runs it there
    swap       execution     the result is checked, and one registry transaction replaces the group's files
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astha.subscribers import ComponentContext
    from components.compactor.subscriber import Compactor

__all__ = ["create"]


def create(settings: Mapping[str, Any], context: ComponentContext) -> Compactor:
    """Raises ValueError (pydantic's) if the settings are invalid."""
    # Imported here because `astha --help` imports this package, and should not wait for Arrow.
    from components.compactor.settings import CompactorSettings
    from components.compactor.spark.executor import open_executor
    from components.compactor.subscriber import Compactor

    chosen = CompactorSettings.model_validate(dict(settings))
    return Compactor(chosen, context, partial(open_executor, chosen.spark, context.lake, context.redactor))
