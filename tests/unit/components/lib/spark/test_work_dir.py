from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from components.lib.spark.work_dir import WorkDir


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_directory_is_removed_with_its_content(directory: Path) -> None:
    scratch = WorkDir()
    (scratch.path / "blocks").mkdir()
    (scratch.path / "blocks" / "block").touch()
    scratch.remove()
    scratch.remove()
    assert list(directory.iterdir()) == []


def test_the_directory_of_a_killed_process_is_removed_by_the_next(directory: Path) -> None:
    left = directory / "astha-spark-left"
    left.mkdir()
    (left / "spark.properties").write_text("spark.secret hidden")
    (directory / "another").mkdir()
    scratch = WorkDir()
    assert set(directory.iterdir()) == {scratch.path, directory / "another"}
    scratch.remove()


def test_a_directory_in_use_stays(directory: Path) -> None:
    first, second = WorkDir(), WorkDir()
    assert set(directory.iterdir()) == {first.path, second.path}
    second.remove()
    assert list(directory.iterdir()) == [first.path]
    first.remove()


def test_a_jvm_that_outlives_the_daemon_keeps_the_directory(directory: Path) -> None:
    program = (
        "import subprocess, sys\n"
        "from components.lib.spark.work_dir import WorkDir\n"
        "made = WorkDir()\n"
        "subprocess.Popen([sys.executable, '-c', 'input()'], pass_fds=[made.lock])\n"
        "print(made.path)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env={"TMPDIR": str(directory)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        path = Path(daemon.stdout.readline().decode().strip())
        assert daemon.wait(30) == 0
        WorkDir().remove()
        assert path.exists()
        daemon.stdin.close()
        daemon.stdout.read()  # ends with the last process that has it
    WorkDir().remove()
    assert not path.exists()


def test_a_link_is_not_followed(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    (directory / "astha-spark-link").symlink_to(elsewhere)
    WorkDir().remove()
    assert (elsewhere / "file").exists()
