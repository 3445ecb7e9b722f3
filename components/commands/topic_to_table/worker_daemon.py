"""``python -m components.commands.topic_to_table.worker_daemon``: forks Python workers that have the writer loaded."""

from __future__ import annotations

from components.lib.spark.worker_daemon import run_worker_daemon

MODULE = "components.commands.topic_to_table.worker_daemon"

if __name__ == "__main__":
    run_worker_daemon("components.commands.topic_to_table.writer")
