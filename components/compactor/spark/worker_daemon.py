"""PySpark's daemon, from which it forks its Python workers, with what a merge needs loaded.

A worker that has had nothing to do for a minute is ended, so most jobs meet new ones: without this each of those would
load for two seconds what it needs.

    python -m components.compactor.spark.worker_daemon   is what Spark runs instead of   python -m pyspark.daemon
"""

from __future__ import annotations

import os

MODULE = "components.compactor.spark.worker_daemon"


def main() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads do not survive a fork
    from pyspark.daemon import manager

    import components.compactor.merge
    import components.compactor.spark.worker  # noqa: F401
    from components.compactor.spark.worker_tuning import break_habits

    break_habits()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
