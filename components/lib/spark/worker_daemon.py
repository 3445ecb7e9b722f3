"""A daemon for Python workers with the modules that their tasks need loaded, and with less work around each task.

Spark ends a worker that was idle for a minute, so most jobs get new ones. Forked from PySpark's own daemon, each would
load Arrow and the lake for two seconds. A component has a module that calls `run_worker_daemon`, and names it to its
session; Spark runs that instead of ``python -m pyspark.daemon``.

PySpark invalidates Python's import caches before every task, so that all of Spark's archives are read again, and
collects garbage after it. Together these cost a quarter of a second of CPU, twice a merge of five small files.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import PurePath
from types import ModuleType
from zipimport import zipimporter

from components.lib.spark.pyspark_internals import run_daemon

_SPARK_ARCHIVES = ("pyspark", "py4j", "spark-")  # what the names of Spark's own archives begin with


class UnchangingArchive:
    """Finds what the archive's own finder finds, and has no cache to invalidate: Spark's archives do not change while
    a worker lives.
    """

    def __init__(self, finder: zipimporter) -> None:
        self._finder = finder

    def find_spec(self, name: str, target: ModuleType | None = None) -> ModuleSpec | None:
        return self._finder.find_spec(name, target)


def tune_worker() -> None:
    """Called when a task begins: PySpark has just collected garbage, so what is alive now stays alive."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and PurePath(finder.archive).name.startswith(_SPARK_ARCHIVES):
            sys.path_importer_cache[path] = UnchangingArchive(finder)
    gc.freeze()


def run_worker_daemon(*modules: str) -> None:
    """Imports the modules and runs PySpark's daemon, which forks the workers from this process."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads do not survive a fork
    for module in ("pyspark.worker", "components.lib.spark.session", *modules):
        import_module(module)
    tune_worker()
    run_daemon()
