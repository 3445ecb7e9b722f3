from __future__ import annotations

from structlog.testing import capture_logs

from astha.concealment import Concealment
from components.compactor.spark.logs import LogRelay


def test_what_the_jvm_says() -> None:
    lines = [b"WARN\tTaskSetManager\tlost a task\n", b"Traceback of a worker: hidden\n", b"\n", b"ERROR\tX\t\xff\n"]
    with capture_logs() as logs:
        relay = LogRelay(lines, Concealment(["hidden"]))
        relay.join()
    assert [(entry["log_level"], entry["message"]) for entry in logs] == [
        ("warning", "lost a task"),
        ("debug", "Traceback of a worker: ***"),
        ("error", "\ufffd"),
    ]
    assert relay.last_words().splitlines()[0] == "WARN\tTaskSetManager\tlost a task"
