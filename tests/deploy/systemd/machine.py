"""A Debian machine in systemd-nspawn, booted by systemd itself. Its root is built once and kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.jars import alone, cache_directory
from tests.servers.packages import PackageMissing, find_program
from tests.servers.process import ServerProcess

_SUITE = "bookworm"
_MIRROR = "http://deb.debian.org/debian"
_PACKAGES = "systemd,systemd-sysv,dbus,libseccomp2,python3,python3-venv"
_BUILD_S = 1_200.0
_BOOT_S = 120.0
_COMMAND_S = 600.0


class NoMachine(Exception):
    """A machine can't be built or booted here; the message says what is missing."""


def machine_root() -> Path:
    """Returns the root directory of the machine. The first call builds it with debootstrap, which takes minutes."""
    if os.geteuid() != 0:
        raise NoMachine("booting a machine with systemd-nspawn needs root: run `make systemd` as root")
    target = cache_directory() / "machines" / f"{_SUITE}-{'-'.join(sorted(_PACKAGES.split(',')))}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target.parent / f"{_SUITE}.lock"):
        if not target.exists():
            _build(target)
    return target


def _build(target: Path) -> None:
    """Builds under another name first, so that a directory with the final name is complete."""
    if shutil.which("wget") is None:
        raise NoMachine("debootstrap needs wget: install wget")
    try:
        debootstrap = find_program("debootstrap", "debootstrap")
    except PackageMissing as error:
        raise NoMachine(str(error)) from error
    scratch = target.with_name("unfinished")
    shutil.rmtree(scratch, ignore_errors=True)
    scripts = debootstrap.path.parents[1] / "share" / "debootstrap"
    environment = {**os.environ, **debootstrap.environment, "DEBOOTSTRAP_DIR": str(scripts), "LC_ALL": "C"}
    sys.stderr.write(f"building {target}\n")
    command = [str(debootstrap.path), "--variant=minbase", f"--include={_PACKAGES}", _SUITE, str(scratch), _MIRROR]
    done = subprocess.run(
        command,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
        timeout=_BUILD_S,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise NoMachine(f"debootstrap failed: {(done.stdout + done.stderr)[-1_000:]}")
    scratch.rename(target)


def _nsenter() -> str:
    found = shutil.which("nsenter")
    if found is None:
        raise NoMachine("nsenter is not on the PATH: install util-linux")
    return found


class Machine:
    """What is written in it is gone when it stops. It shares the network of this machine."""

    def __init__(self, directory: Path, mounts: Mapping[str, Path]) -> None:
        """``mounts``: places in the machine, read-only, and what is mounted there."""
        self._mounts = mounts
        self._process = ServerProcess("systemd-nspawn", directory / "console.log")

    def __enter__(self) -> Self:
        try:
            nspawn = find_program("systemd-nspawn", "systemd-container")
        except PackageMissing as error:
            raise NoMachine(str(error)) from error
        command = [str(nspawn.path), "--directory", str(machine_root()), "--volatile=overlay", "--boot", "--keep-unit"]
        command += ["--register=no", "--link-journal=no", "--console=pipe", f"--machine=astha-{os.getpid()}"]
        command += [f"--bind-ro={source}:{place}" for place, source in self._mounts.items()]
        self._process.start(command, nspawn.environment, self._booted, _BOOT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop()

    def run(self, *command: str, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command as root in the machine. Fails with its output unless it exits with 0."""
        pid = self._init()
        assert pid is not None, "the machine is not running"
        done = subprocess.run(
            [_nsenter(), f"--target={pid}", "--all", "env", "--chdir=/", *command],
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LC_ALL": "C.UTF-8"},
            text=True, input=text or "", capture_output=True, check=False, timeout=_COMMAND_S,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def write(self, path: str, text: str) -> None:
        self.run("mkdir", "-p", str(Path(path).parent))
        self.run("tee", path, text=text)

    def _booted(self) -> bool:
        if self._init() is None:
            return False
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return state in ("running", "degraded")

    def _init(self) -> int | None:
        """Returns the process id of the machine's systemd, seen from outside."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        found = children.read_text().split() if children.exists() else []
        return int(found[0]) if found else None
