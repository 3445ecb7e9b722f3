from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from astha.redaction import NO_SECRETS
from components.lib.spark.errors import SessionProblem
from components.lib.spark.jvm import Jvm, _with_directory, find_java


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return path


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SessionProblem, match=r"no java on the PATH.*install Java 17 or newer"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SessionProblem, match=r"can't be run .*install Java 17 or newer"):
        find_java()


@pytest.mark.parametrize(
    ("version", "message"),
    [('java version "1.8.0_392"', "is Java 8, and Spark needs 17"), ('openjdk version "11.0.2"', "is Java 11")],
)
def test_java_that_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, message: str) -> None:
    program(tmp_path / "bin" / "java", f"import sys; print({version!r}, file=sys.stderr)")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SessionProblem, match=message):
        find_java()


def test_java_that_is_new_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = program(tmp_path / "bin" / "java", "import sys; print('openjdk version \"21\" 2023', file=sys.stderr)")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)


def test_a_jvm_that_does_not_start_says_why(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "spark-submit", "import sys; print('ERROR\\tMain\\tno such class'); sys.exit(4)")
    jvm = Jvm(tmp_path, {}, {}, NO_SECRETS)
    with pytest.raises(SessionProblem, match=r"did not start \(code 4\): ERROR\tMain\tno such class"):
        jvm.connection(30)
    jvm.end(1)


def test_a_failed_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SessionProblem, match=r"can't be run .*is all of PySpark installed, and space in "):
        Jvm(tmp_path, {}, {}, NO_SECRETS)
    assert list(tmp_path.iterdir()) == []


def test_a_jvm_that_is_killed_while_it_starts(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "spark-submit", "import os; os.kill(os.getpid(), 9)")
    jvm = Jvm(tmp_path, {}, {}, NO_SECRETS)
    with pytest.raises(SessionProblem, match="killed by signal 9 while it started"):
        jvm.connection(30)
    jvm.end(1)


def test_the_properties_file_is_private(tmp_path: Path) -> None:
    program(
        tmp_path / "bin" / "spark-submit",
        "import os, struct, sys\n"
        "given = sys.argv[sys.argv.index('--properties-file') + 1]\n"
        "content = open(given).read().encode() + oct(os.stat(given).st_mode)[-3:].encode()\n"
        "path = os.environ['_PYSPARK_DRIVER_CONN_INFO_PATH']\n"
        "with open(path + '.tmp', 'wb') as file:\n"
        "    file.write(struct.pack('>ii', 4711, len(content)) + content)\n"
        "os.rename(path + '.tmp', path)\n"
        "sys.stdin.read()\n",
    )
    jvm = Jvm(tmp_path, {"spark.secret": "a\\b\nc"}, {}, NO_SECRETS)
    directory = jvm._work_dir.path
    options = f'spark.driver.extraJavaOptions -Djava.io.tmpdir="{directory}"'
    assert jvm.connection(30) == (4711, f"spark.secret a\\\\b\\nc\n{options}\n600")
    assert list(directory.iterdir()) == []  # nothing to find after a kill
    jvm.end(30)  # its standard input closes
    assert jvm.process.poll() == 0
    assert not directory.exists()


@pytest.mark.parametrize(
    ("master", "directory", "sockets"),
    [("local[2]", "/short", True), ("local[2]", "/long" * 20, False), ("spark://host:7077", "/short", False)],
)
def test_workers_use_unix_sockets_where_possible(master: str, directory: str, sockets: bool) -> None:
    found = _with_directory({"spark.master": master}, Path(directory))
    assert ("spark.python.unix.domain.socket.enabled" in found) is sockets
    assert (
        _with_directory({**found, "spark.python.unix.domain.socket.enabled": "false"}, Path(directory))[
            "spark.python.unix.domain.socket.enabled"
        ]
        == "false"
    )


def test_a_jvm_that_does_not_end_is_killed(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "spark-submit", "import time; time.sleep(60)")
    jvm = Jvm(tmp_path, {}, {}, NO_SECRETS)
    jvm.end(0.01)
    assert jvm.process.poll() == -9
    assert not Path(f"/proc/{jvm.process.pid}").exists()
    assert "killed by signal 9" in str(jvm.lost())
