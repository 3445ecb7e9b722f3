"""Builds images and runs commands in them: with docker or podman, else with buildah and chroot.

Without an engine, buildah builds on a base that debootstrap makes, of the release in the Dockerfile; no registry
is needed. A command then runs in a mount namespace and chroot, as the image's user, on a read-only root file system.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tests.deploy.docker.demo_files import DOCKER, ROOT
from tests.servers.jars import alone, cache_directory

BUILD_S = 3600.0
RUN_S = 600.0
_BASE_PACKAGES = "python3,python3-venv,ca-certificates,netbase,tzdata"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

# Mounts what an engine would: a read-only root, the names of hosts, a private /tmp, the volume, /proc and /dev.
_IN_CHROOT = """
root=$1 state=$2 user=$3; shift 3
mount --bind "$root" "$root"
for file in /etc/hosts /etc/resolv.conf; do
    touch "$root$file"
    mount --bind "$file" "$root$file"
done
mount -o remount,bind,ro "$root"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$state" "$root/var/lib/astha"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
exec chroot --userspec="$user" "$root" sh -c 'cd /var/lib/astha && exec "$@"' sh "$@"
"""

Finished: TypeAlias = subprocess.CompletedProcess[str]


class EngineMissing(Exception):
    """Nothing here can build an image; the message says what to install."""


class Engine(Protocol):
    name: str

    def build(self, target: str, tag: str) -> None: ...

    def config(self, tag: str) -> dict[str, Any]:
        """Returns the image's configuration: User, Env, Entrypoint, Cmd, Healthcheck, Labels, ..."""

    def size(self, tag: str) -> int:
        """Returns the bytes of the unpacked image."""

    def run(
        self, tag: str, *command: str, environment: Mapping[str, str] | None = None, as_root: bool = False
    ) -> Finished:
        """Runs a command as the image's user, with a read-only root. /var/lib/astha is kept between commands."""

    def close(self) -> None: ...


def find_engine(directory: Path) -> Engine:
    for name in ("docker", "podman"):
        if shutil.which(name) and _call([name, "info"], 60.0, check=False).returncode == 0:
            return Docker(name)
    if missing := [name for name in ("buildah", "debootstrap", "unshare") if shutil.which(name) is None]:
        raise EngineMissing(
            f"no Docker or Podman engine responds, and {', '.join(missing)} can't be found to do without: "
            "start an engine, or run `apt-get install buildah debootstrap` as root"
        )
    if os.geteuid() != 0:
        raise EngineMissing("no Docker or Podman engine responds; buildah with chroot needs root: run this as root")
    return Buildah(directory)


class Docker:
    """Docker, or Podman, which has the same command line. One container per command; the volume is shared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._volume = f"astha-test-{os.getpid()}"

    def build(self, target: str, tag: str) -> None:
        dockerfile = str(DOCKER / "Dockerfile")
        _call([self.name, "build", "--file", dockerfile, "--target", target, "--tag", tag, str(ROOT)], BUILD_S)

    def config(self, tag: str) -> dict[str, Any]:
        found: dict[str, Any] = self._inspect(tag)["Config"]
        return found

    def size(self, tag: str) -> int:
        return int(self._inspect(tag)["Size"])

    def run(
        self, tag: str, *command: str, environment: Mapping[str, str] | None = None, as_root: bool = False
    ) -> Finished:
        variables = [part for name, value in (environment or {}).items() for part in ("--env", f"{name}={value}")]
        hardened = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs=/tmp:exec"]
        places = [f"--volume={self._volume}:/var/lib/astha", f"--entrypoint={command[0]}"]
        places += ["--user=0:0"] if as_root else []
        return _call([self.name, "run", "--rm", *hardened, *places, *variables, tag, *command[1:]], RUN_S, check=False)

    def close(self) -> None:
        _call([self.name, "volume", "rm", "--force", self._volume], 60.0, check=False)

    def _inspect(self, tag: str) -> dict[str, Any]:
        (found,) = json.loads(_call([self.name, "image", "inspect", tag], 60.0).stdout)
        return dict(found)


class Buildah:
    name = "buildah"

    def __init__(self, directory: Path) -> None:
        self._storage, self._state, self._log = directory / "storage", directory / "state", directory / "build.log"
        self._base: str | None = None
        self._roots: dict[str, Path] = {}

    def build(self, target: str, tag: str) -> None:
        if self._base is None:
            self._base = self._make_base()
        arguments = ["--build-arg", f"PYTHON_IMAGE={self._base}", "--target", target, "--tag", tag]
        if _CERTIFICATES.exists():
            arguments += ["--secret", f"id=ca,src={_CERTIFICATES}"]
        self._bud(DOCKER / "Dockerfile", ROOT, *arguments)
        container = self._buildah("from", "--pull-never", f"localhost/{tag}").strip()
        self._roots[tag] = Path(self._buildah("mount", container).strip())

    def config(self, tag: str) -> dict[str, Any]:
        found = json.loads(self._buildah("inspect", "--type", "image", f"localhost/{tag}"))
        return dict(found["Docker"]["config"])

    def size(self, tag: str) -> int:
        return int(_call(["du", "-s", "-B1", str(self._roots[tag])], RUN_S).stdout.split()[0])

    def run(
        self, tag: str, *command: str, environment: Mapping[str, str] | None = None, as_root: bool = False
    ) -> Finished:
        config = self.config(tag)
        user = config["User"]
        if not self._state.exists():
            self._state.mkdir(mode=0o700)
            os.chown(self._state, *map(int, user.split(":")))
        variables = dict(variable.split("=", 1) for variable in config["Env"]) | dict(environment or {})
        # The image's variables are set inside: outside, PATH would not lead to chroot.
        inside = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), *command]
        script = ["unshare", "--mount", "sh", "-euc", _IN_CHROOT, "sh"]
        runs_as = "0:0" if as_root else user
        return _call([*script, str(self._roots[tag]), str(self._state), runs_as, *inside], RUN_S, check=False)

    def close(self) -> None:
        self._buildah("umount", "--all")
        self._buildah("rm", "--all")
        shutil.rmtree(self._storage)

    def _make_base(self) -> str:
        found = re.search(r"^ARG PYTHON_IMAGE=\S+-slim-(\w+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
        assert found is not None
        tar = cache_directory() / "images" / f"{found[1]}-without-lists.tar"
        tar.parent.mkdir(parents=True, exist_ok=True)
        with alone(tar.with_suffix(".lock")):
            if not tar.exists():
                _debootstrap(found[1], tar)
        tag = f"astha-base-{found[1]}"
        dockerfile = self._storage.with_name("base.Dockerfile")
        dockerfile.write_text(f"FROM scratch\nADD {tar.name} /\n")
        self._bud(dockerfile, tar.parent, "--tag", tag)
        return f"localhost/{tag}"

    def _bud(self, dockerfile: Path, context: Path, *arguments: str) -> None:
        # Layers would be whole copies of the file system: vfs has no others. The Docker format has health checks.
        fixed = ["--isolation", "chroot", "--layers=false", "--format", "docker", "--pull-never"]
        self._buildah("bud", *fixed, *arguments, "--file", str(dockerfile), str(context))

    def _buildah(self, *arguments: str) -> str:
        places = ["--root", str(self._storage), "--runroot", f"{self._storage}-run", "--storage-driver", "vfs"]
        return _call(["buildah", *places, *arguments], BUILD_S).stdout


def _debootstrap(release: str, tar: Path) -> None:
    """Makes a tar of a small Debian with Python, from the mirror that this machine's apt uses by default."""
    root = tar.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    _call(["debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}", release, str(root)], BUILD_S)
    unfinished = tar.with_suffix(".new")
    left_out = ["--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*_*"]  # as in python:slim
    _call(["tar", "-C", str(root), *left_out, "-cf", str(unfinished), "."], BUILD_S)
    unfinished.replace(tar)
    shutil.rmtree(root)


def _call(command: list[str], timeout: float, *, check: bool = True) -> Finished:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, cwd=ROOT)
    if check and done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise RuntimeError(f"{' '.join(command[:2])} failed with {done.returncode}: {said}")
    return done
