from __future__ import annotations

import pytest

from components.lib.spark.error_mapping import explain
from components.lib.spark.errors import JobFailed, OutOfMemory, SessionProblem, SparkError, WorkerCrashed


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("Job aborted: java.lang.OutOfMemoryError: Java heap space", OutOfMemory, "Java heap space"),
        ("ExecutorLostFailure (executor 1 exited): Command exited with code 52", OutOfMemory, "code 52"),
        ("Container from a bad node. Exit status: 137. Killed by external signal", OutOfMemory, "137"),
        ("Python worker exited unexpectedly (crashed)\njava.io.EOFException", OutOfMemory, "was killed"),
        ("(crashed): Fatal Python error: Segmentation fault\n", WorkerCrashed, "a worker crashed: Segmentation fault"),
        ("ModuleNotFoundError: No module named 'components'\n", SessionProblem, "No module named 'components'"),
        ('java.io.IOException: Cannot run program "python9": error=2', SessionProblem, "no Python 'python9'"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version", SessionProblem, "another Python"),
        ("An error occurred while calling o1.collect.\n: the real one\n\tat", JobFailed, "failed: : the real one"),
        ("", JobFailed, "no reason given"),
    ],
)
def test_failures_are_recognised_by_their_text(text: str, kind: type[SparkError], message: str) -> None:
    error = explain(text)
    assert type(error) is kind
    assert message in str(error)
