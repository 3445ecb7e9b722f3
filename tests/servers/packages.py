"""Programs from Debian packages, unpacked into the user's cache: nothing is installed, and root is not needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.servers.jars import alone, cache_directory

_INSTALLED = re.compile(r"^Inst (\S+)", re.MULTILINE)
_DOWNLOAD_S = 300.0


class PackageMissing(Exception):
    """A package could not be had; the message says why and what to install."""


@dataclass(frozen=True, slots=True)
class Program:
    path: Path
    environment: dict[str, str]


def find_program(name: str, package: str) -> Program:
    """Returns the installed program, or one from its package. The first call downloads the package."""
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"])
    if found := shutil.which(name, path=places):
        return Program(Path(found), {})
    root = _unpacked(package)
    # A program in its own directory first: the one in usr/bin may be a script with the installed path.
    parts = (f"usr/lib/{package}", "usr/sbin", "usr/bin", "sbin", "bin")
    found = shutil.which(name, path=os.pathsep.join(str(root / part) for part in parts))
    if found is None:
        raise PackageMissing(f"the package {package} has no program {name}: install one, so that it is on the PATH")
    libraries = sorted({str(path.parent) for path in root.rglob("*.so*")})
    return Program(Path(found), {"LD_LIBRARY_PATH": os.pathsep.join(libraries)})


def _unpacked(package: str) -> Path:
    target = cache_directory() / "packages" / package
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target.with_suffix(".lock")):
        if not target.exists():
            print(f"fetching the package {package}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                names = _download(package, Path(scratch))
                (Path(scratch) / "root").rename(target)
            print(f"fetched {', '.join(names)}", file=sys.stderr, flush=True)
    return target


def _download(package: str, scratch: Path) -> list[str]:
    """Unpacks the package and the libraries and parts of it that this machine lacks into the directory `root`."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise PackageMissing(f"{package} is not installed, and apt-get is not there to fetch it: install {package}")
    try:
        names = _fetch(package, scratch)
    except subprocess.CalledProcessError as error:
        if os.geteuid() != 0:
            raise _failed(package, error) from error
        try:
            _run("apt-get", "update", "-q", directory=scratch)
            names = _fetch(package, scratch)
        except subprocess.CalledProcessError as again:
            raise _failed(package, again) from again
    for path in scratch.glob("*.deb"):
        _run("dpkg", "-x", str(path), str(scratch / "root"), directory=scratch)
    return names


def _fetch(package: str, scratch: Path) -> list[str]:
    plan = _run("apt-get", "install", "--simulate", "--no-install-recommends", package, directory=scratch)
    needed = [name for name in _INSTALLED.findall(plan) if name.startswith(("lib", f"{package}-"))]
    missing = [name for name in needed if name != "libc6"]
    names = [package, *missing]
    _run("apt-get", "download", "-q", *names, directory=scratch)
    return names


def _run(*command: str, directory: Path) -> str:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=True, timeout=_DOWNLOAD_S
    )
    return done.stdout


def _failed(package: str, error: subprocess.CalledProcessError) -> PackageMissing:
    said = "; ".join(line for line in error.stderr.splitlines() if line.startswith("E:"))
    return PackageMissing(f"could not fetch {package}: {said or error}: run `apt-get update`, or install {package}")
