"""Further versions of Astha, and the packages that they need, for the machine."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deploy.bundle import PYTHON, ROOT, build_wheel, version_of
from tests.integration.operations.next_version import with_revisions
from tests.servers.jars import alone, cache_directory

_SOURCES = ("astha", "components", "registry", "README.md", "LICENSE", "pyproject.toml")


def build_version(
    version: str,
    target: Path,
    *,
    broken: bool = False,
    revisions: Mapping[str, tuple[str | None, str]] | None = None,
) -> Path:
    """Builds this tree as that version, with further migrations as in `with_revisions`.

    A broken one passes `astha check`, and its daemon does not start.
    """
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        for name in _SOURCES:
            source = ROOT / name
            shutil.copytree(source, tree / name) if source.is_dir() else shutil.copy(source, tree / name)
        project = tree / "pyproject.toml"
        ours = f'\nversion = "{version_of(ROOT)}"\n'
        project.write_text(project.read_text().replace(ours, f'\nversion = "{version}"\n'))
        if broken:
            with (tree / "astha/process.py").open("a") as module:
                module.write("\n\nraise RuntimeError('this version is broken')\n")
        if revisions is not None:
            shutil.rmtree(tree / "registry/migrations")
            with_revisions(tree / "registry/migrations", revisions)
        return build_wheel(tree, target)


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
                command += ["--requirement", str(requirements)]
                done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False, timeout=600)
                assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
                (Path(scratch) / "wheels").rename(target)
    return target
