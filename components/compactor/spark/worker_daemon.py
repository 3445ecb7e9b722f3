"""``python -m components.compactor.spark.worker_daemon``: forks Python workers that have the merge loaded."""

from __future__ import annotations

from components.lib.spark.worker_daemon import run_worker_daemon

MODULE = "components.compactor.spark.worker_daemon"

if __name__ == "__main__":
    run_worker_daemon("components.compactor.merge", "components.compactor.spark.worker")
