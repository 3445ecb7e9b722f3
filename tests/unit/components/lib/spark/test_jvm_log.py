from __future__ import annotations

from structlog.testing import capture_logs

from astha.redaction import Redactor
from components.lib.spark.jvm_log import LogRelay


def test_the_jvms_log_is_forwarded() -> None:
    lines = [b"WARN\tTaskSetManager\tlost a task\n", b"Traceback of a worker: hidden\n", b"\n", b"ERROR\tX\t\xff\n"]
    with capture_logs() as logs:
        relay = LogRelay(lines, Redactor(["hidden"]), quiet=False)
        relay.join()
    assert [(entry["log_level"], entry["message"]) for entry in logs] == [
        ("warning", "lost a task"),
        ("debug", "Traceback of a worker: ***"),
        ("error", "\ufffd"),
    ]
    assert relay.last_lines().splitlines()[0] == "WARN\tTaskSetManager\tlost a task"


def test_the_log_is_quiet_during_the_start() -> None:
    """The starter of the session reports the problem, once."""
    with capture_logs() as logs:
        relay = LogRelay([b"ERROR\tSparkContext\tError initializing SparkContext.\n"], Redactor([]))
        relay.join()
    assert [entry["log_level"] for entry in logs] == ["debug"]
    assert "Error initializing" in relay.last_lines()
