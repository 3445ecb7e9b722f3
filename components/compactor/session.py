"""How the compactor comes to its executor: the kernel, on the session that the settings describe."""

from __future__ import annotations

from components.compactor.merge import merge
from components.compactor.settings import CompactorSettings
from components.compactor.spark.host import SparkExecutor


def open_executor(settings: CompactorSettings) -> SparkExecutor:
    """Opens nothing until the first merge."""
    return SparkExecutor(settings.spark, merge)
