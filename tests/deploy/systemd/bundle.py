"""What an operator gets: wheels of Astha, the pinned packages that it needs, and deploy/systemd."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers.jars import alone, cache_directory

ROOT = Path(__file__).parents[3]
PYTHON = "3.11"  # of the machine
_SOURCES = ("astha", "components", "registry", "README.md", "LICENSE", "pyproject.toml")


def build_wheel(version: str, target: Path, *, broken: bool = False) -> Path:
    """Builds this tree as that version. A broken one passes `astha check`, and its daemon does not start."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        for name in _SOURCES:
            source = ROOT / name
            shutil.copytree(source, tree / name) if source.is_dir() else shutil.copy(source, tree / name)
        project = tree / "pyproject.toml"
        project.write_text(project.read_text().replace('\nversion = "0.1.0"\n', f'\nversion = "{version}"\n'))
        if broken:
            with (tree / "astha/process.py").open("a") as module:
                module.write("\n\nraise RuntimeError('this version is broken')\n")
        _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target), directory=tree)
    return target / f"astha-{version}-py3-none-any.whl"


def pinned_requirements(target: Path, *extras: str) -> Path:
    """Writes the part of requirements.lock that the daemon needs, with its hashes."""
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "compile", "pyproject.toml", "--constraint", "requirements.lock", "--universal", "--quiet"]
    command += ["--python-version", PYTHON, "--generate-hashes", "--no-header", "--no-annotate"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--output-file", str(target)]
    _run(*command, *(f"--extra={extra}" for extra in extras), directory=ROOT)
    return target


def wheels_of(requirements: Path) -> Path:
    """Returns a directory with these packages, fetched once."""
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
    target = cache_directory() / "wheels" / f"{key}-{PYTHON}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target.with_suffix(".lock")):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps"]
                command += ["--only-binary=:all:", "--python-version", PYTHON, "--dest", f"{scratch}/wheels"]
                _run(*command, "--requirement", str(requirements), directory=ROOT)
                (Path(scratch) / "wheels").rename(target)
    return target


def _run(*command: str, directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, text=True, capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
