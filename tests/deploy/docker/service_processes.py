"""Services of compose.yaml as processes: their entry points, commands, variables, mounts and health checks, word for
word. Only what containers have of their own is replaced: paths of mounts, and names and ports of hosts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.deploy.docker.demo_files import DOCKER, OUR_IMAGES, ROOT, bind_mounts, named_volumes, services
from tests.servers.packages import find_program

COMMAND_S = 300.0
_IN_IMAGE = {"/usr/local/lib/astha/healthcheck.py": DOCKER / "healthcheck.py"}
_DEFAULT_CHECK = ["CMD", "python", "/usr/local/lib/astha/healthcheck.py"]
_PATH = re.compile(r"(?<![\w./:-])/[\w./-]+")
_PROGRAMS = {"wget": ("busybox", "busybox"), "mosquitto_sub": ("mosquitto_sub", "mosquitto-clients"),
             "pg_isready": ("pg_isready", "postgresql-client")}  # fmt: skip
"""Those of health checks, which the images of other projects have: program and Debian package. Images that are small
have the wget of busybox.
"""


class ServiceProcesses:
    """`addresses` are those of this machine, by what compose.yaml and the files that it mounts have instead.
    `variables` by service are added to its own, such as ports.
    """

    def __init__(
        self,
        directory: Path,
        addresses: Mapping[str, str] | None = None,
        variables: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._directory = directory
        self._addresses = addresses or {}
        self._variables = variables or {}
        self._services = services()

    def volume(self, name: str) -> Path:
        path = self._directory / "volumes" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def command(self, name: str) -> list[str]:
        """Returns entry point and command: those of the service, or else of the image."""
        service = self._services[name]
        entry = service.get("entrypoint", ["astha"] if service["image"] in OUR_IMAGES else [])
        default = ["run"] if service["image"] in OUR_IMAGES and "entrypoint" not in service else []
        return self._program([self.here(name, part) for part in [*entry, *service.get("command", default)]])

    def environment(self, name: str) -> dict[str, str]:
        """Nothing of this process's settings gets there. Temporary files have a place of the service's own."""
        work = self.work(name)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("ASTHA_")}
        given = self._services[name].get("environment", {})
        return {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(work),
            **{variable: self.here(name, value) for variable, value in given.items()},
            **self._variables.get(name, {}),
        }

    def work(self, name: str) -> Path:
        path = self._directory / "work" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def run(self, name: str, **more: str) -> None:
        """Runs a service that ends by itself."""
        environment = {**self.environment(name), **more}
        done = _call(self.command(name), environment, self.work(name))
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"

    def execute(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `astha` like ``docker compose exec NAME astha``."""
        return _call(self._program(["astha", *arguments]), self.environment(name), self.work(name))

    def start(self, name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(name), env=self.environment(name), cwd=self.work(name),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def healthy(self, name: str) -> bool:
        """Runs the health check of the service, or else of the image."""
        check = self._services[name].get("healthcheck", {}).get("test", _DEFAULT_CHECK)
        assert check[0] == "CMD", check
        words = [self.here(name, word.replace("$$", "$")) for word in check[1:]]
        environment = self.environment(name)
        if words[0] in _PROGRAMS:
            program = find_program(*_PROGRAMS[words[0]])
            shown = ["wget"] if words[0] == "wget" else []
            words = [str(program.path), *shown, *words[1:]]
            environment |= program.environment
        return _call(self._program(words), environment, self.work(name)).returncode == 0

    def here(self, name: str, text: str) -> str:
        """Returns the text of a service with the paths and addresses of this machine."""
        places = self._mounts(self._services[name], self._directory / "mounts" / name)

        def replaced(match: re.Match[str]) -> str:
            path = match[0]
            for target, place in places.items():
                if path == target or path.startswith(f"{target}/"):
                    return str(place) + path.removeprefix(target)
                if target.startswith(f"{path}/"):
                    return str(self._directory / "mounts" / name) + path
            return str(_IN_IMAGE.get(path, path))

        return self._addressed(_PATH.sub(replaced, text))

    def file(self, name: str, target: str) -> Path:
        """Returns the place of a file or directory that the service mounts."""
        return Path(self.here(name, target))

    def rewrite(self, name: str, target: str, further: str = "") -> None:
        """Puts paths and addresses of this machine into a file that the service mounts."""
        path = self.file(name, target)
        text = self.here(name, path.read_text()) + further
        path.unlink()
        path.write_text(text)

    def _mounts(self, service: dict[str, Any], root: Path) -> dict[str, Path]:
        """Makes the service's mounts below `root`: volumes are shared, files of the repository copied."""
        made = {}
        for volume, target, _ in named_volumes(service):
            made[target] = root / target.lstrip("/")
            self._link(made[target], self.volume(volume))
        for target, source in bind_mounts(service).items():
            made[target] = root / target.lstrip("/")
            if source.is_dir():
                self._link(made[target], source)
            elif not made[target].exists():
                made[target].parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, made[target])
        return made

    @staticmethod
    def _link(link: Path, to: Path) -> None:
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(to)

    def _addressed(self, text: str) -> str:
        for name, address in self._addresses.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", address, text)
        return text

    @staticmethod
    def _program(words: list[str]) -> list[str]:
        if words[:1] == ["astha"]:
            return [sys.executable, "-m", "astha.cli", *words[1:]]
        return [sys.executable, *words[1:]] if words[:1] == ["python"] else words


def _call(command: list[str], environment: Mapping[str, str], directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, check=False, timeout=COMMAND_S
    )
