"""What Spark's long words mean to who asked for a round."""

from __future__ import annotations

import pytest

from components.commands.topic_to_table.errors import BadRecord, RoundFailed
from components.commands.topic_to_table.runner import may_pass
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
        ("components.lib.lake.storage.objects.StorageUnavailable: s3://b: down", RoundFailed, "s3://b: down", True),
        ("registry.errors.Unavailable: sqlite: locked", RoundFailed, "sqlite: locked", True),
        ("components.lib.streams.errors.OffsetTooOld: offset 1", RoundFailed, "offset 1", False),
    ],
)
def test_errors_of_ours(last: str, kind: type[Exception], words: str, passes: bool) -> None:
    told = explain(Exception(TRACE.format(last=last)), ClassicSession(SparkSettings(), None, lambda: None))
    assert type(told) is kind
    assert str(told) == words
    assert may_pass(told) is passes


@pytest.mark.parametrize(("text", "kind"), [("strange", JobFailed), ("java.lang.OutOfMemoryError: heap", OutOfMemory)])
def test_errors_of_spark(text: str, kind: type[Exception]) -> None:
    told = explain(Exception(text), ClassicSession(SparkSettings(), None, lambda: None))
    assert type(told) is kind
    assert may_pass(told)
