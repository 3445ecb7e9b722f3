"""How Spark's errors are translated for a micro-batch."""

from __future__ import annotations

import pytest

from components.commands.topic_to_table.errors import BadRecord, MicroBatchFailed
from components.commands.topic_to_table.runner import is_transient
from components.commands.topic_to_table.session import explain
from components.lib.spark.classic import ClassicSession
from components.lib.spark.errors import JobFailed, OutOfMemory
from components.lib.spark.settings import SparkSettings

TRACE = """[PYTHON_EXCEPTION] Job aborted due to stage failure: Traceback (most recent call last):
  File "x.py", line 1, in write
components.lib.storage_manager.errors.RowsRefused: row 3: not a JSON object: JSON is malformed

The above exception was the direct cause of the following exception:

{last}
	at org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("last", "kind", "words", "passes"),
    [
        (
            "components.commands.topic_to_table.errors.BadRecord: orders/0, offset 3: x",
            BadRecord,
            "orders/0, offset 3: x",
            False,
        ),
        (
            "components.lib.lake.storage.objects.StorageUnavailable: s3://b: down",
            MicroBatchFailed,
            "s3://b: down",
            True,
        ),
        ("registry.errors.Unavailable: sqlite: locked", MicroBatchFailed, "sqlite: locked", True),
        ("components.lib.streams.errors.OffsetTooOld: offset 1", MicroBatchFailed, "offset 1", False),
    ],
)
def test_our_own_errors_are_raised_again(last: str, kind: type[Exception], words: str, passes: bool) -> None:
    problem = explain(Exception(TRACE.format(last=last)), ClassicSession(SparkSettings(), None, lambda: None))
    assert type(problem) is kind
    assert str(problem) == words
    assert is_transient(problem) is passes


@pytest.mark.parametrize(("text", "kind"), [("strange", JobFailed), ("java.lang.OutOfMemoryError: heap", OutOfMemory)])
def test_errors_of_spark_are_explained(text: str, kind: type[Exception]) -> None:
    problem = explain(Exception(text), ClassicSession(SparkSettings(), None, lambda: None))
    assert type(problem) is kind
    assert is_transient(problem)
