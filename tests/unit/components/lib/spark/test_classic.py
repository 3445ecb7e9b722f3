from __future__ import annotations

import sys
from pathlib import Path

import pytest

from astha.redaction import NO_SECRETS
from components.lib.spark.classic import ClassicSession
from components.lib.spark.errors import OutOfMemory, SessionLost, SparkError
from components.lib.spark.jvm import Jvm
from components.lib.spark.settings import SparkSettings


@pytest.mark.parametrize(
    ("end", "kind", "message"),
    [
        ("sys.exit(3)", OutOfMemory, "its heap was full; raise 'memory'"),
        ("sys.exit(1)", SessionLost, "ended with code 1: ERROR\tMain\tlast words"),
        ("os.kill(os.getpid(), 9)", SessionLost, "killed by signal 9"),
    ],
)
def test_how_a_jvm_ended(tmp_path: Path, end: str, kind: type[SparkError], message: str) -> None:
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport os, sys\nprint('ERROR\\tMain\\tlast words', flush=True)\n{end}\n")
    program.chmod(0o755)
    session = ClassicSession(SparkSettings(), None, lambda: None)
    session._jvm = Jvm(tmp_path, {}, {}, NO_SECRETS)
    session._jvm.process.wait(30)
    for _ in range(2):  # before it is closed, and after
        for heard in (ConnectionResetError(), SessionLost("the Spark session was lost")):
            error = session.explain(heard)
            assert type(error) is kind
            assert message in str(error)
        session.close(1.0)


def test_an_error_after_a_regular_close() -> None:
    session = ClassicSession(SparkSettings(), None, lambda: None)
    assert str(session.explain(ConnectionResetError())) == "the Spark session was closed"
    with pytest.raises(SessionLost):
        session.ping()
