"""Makes dist/astha-VERSION.tar.gz for machines with systemd: `make bundle` runs ``python -m deploy.bundle EXTRA...``.

It holds the wheel, the pinned packages that it needs with their hashes, and deploy/systemd with the installer.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = "3.11"  # the oldest that Astha runs on


def make_bundle(target: Path, extras: Sequence[str]) -> Path:
    """Returns the archive in this directory. Its contents are beside it, in a directory of the same name."""
    directory = target / f"astha-{version_of(ROOT)}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    build_wheel(ROOT, directory)
    pin_requirements(directory / "requirements.txt", extras)
    shutil.copytree(ROOT / "deploy/systemd", directory / "systemd", ignore=shutil.ignore_patterns("__pycache__"))
    archive = directory.with_name(f"{directory.name}.tar.gz")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(directory, directory.name)
    return archive


def version_of(tree: Path) -> str:
    return str(tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"])


def build_wheel(tree: Path, target: Path) -> Path:
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target), directory=tree)
    return target / f"astha-{version_of(tree)}-py3-none-any.whl"


def pin_requirements(target: Path, extras: Sequence[str]) -> Path:
    """Writes the part of requirements.lock that the daemon needs with these extras, with its hashes."""
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "compile", "pyproject.toml", "--constraint", "requirements.lock", "--universal", "--quiet"]
    command += ["--python-version", PYTHON, "--generate-hashes", "--no-header", "--no-annotate"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--output-file", str(target)]
    _run(*command, *(f"--extra={extra}" for extra in extras), directory=ROOT)
    return target


def _run(*command: str, directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, text=True, capture_output=True, check=False, timeout=600)  # noqa: S603
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    print(f"bundle: {make_bundle(ROOT / 'dist', sys.argv[1:]).relative_to(ROOT)}")  # noqa: T201
