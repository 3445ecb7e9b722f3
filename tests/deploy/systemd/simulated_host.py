"""A machine for tests of the installer's logic: real files below a directory, simulated commands."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from deploy.systemd import installer
from registry.schema_status import SchemaState

SCHEMAS = {"0.1.0": "0001", "0.2.0": "0002", "0.3.0": "0002"}
"""Version -> the schema revision that it needs."""


class Killed(BaseException):
    """The installer's process ends here: it runs no command any more."""


@dataclass
class SimulatedHost(installer.Host):
    root: Path
    live: bool = True
    systemd: int = 252
    units_running: set[str] = field(default_factory=set)
    schema: str = ""
    compatible_from: dict[str, str] = field(default_factory=dict)  # revision -> the oldest whose code can use it
    broken: set[str] = field(default_factory=set)  # versions whose daemon does not start
    failing: set[str] = field(default_factory=set)  # "VERSION COMMAND" of astha that exits with 1
    commands: list[str] = field(default_factory=list)
    kill_at: int | None = None

    def run(self, *command: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
        if self.kill_at is not None and len(self.commands) >= self.kill_at:
            raise Killed
        self.commands.append(" ".join(command))
        code, output = self._result(list(command))
        return subprocess.CompletedProcess(command, code, output)

    def sleep(self, seconds: float) -> None:
        raise AssertionError("the state of a simulated unit never changes by itself")

    @property
    def current(self) -> str:
        return (self.root / "opt/astha/current").readlink().name

    def _result(self, command: list[str]) -> tuple[int, str]:
        match command:
            case ["systemctl", *arguments]:
                return self._systemctl(arguments)
            case ["systemd-run", *arguments]:
                at = next(number for number, word in enumerate(arguments) if word.endswith("/bin/astha"))
                return self._astha(arguments[at].split("/")[3], arguments[at + 1 :])
            case [_, "-m", "venv", target]:
                (Path(target) / "bin").mkdir(parents=True)
                return 0, ""
            case [_, "-c", _]:
                return 0, "/usr 3 11\n"
            case _:
                return 0, ""

    def _systemctl(self, arguments: list[str]) -> tuple[int, str]:
        match arguments:
            case ["--version"]:
                return 0, f"systemd {self.systemd} (something)\n"
            case ["start", unit]:
                if self.current in self.broken or not self._usable(self.current):
                    return 1, ""
                self.units_running.add(unit)
            case ["stop", unit] | ["disable", "--now", unit]:
                self.units_running.discard(unit)
            case ["list-units", *_]:
                return 0, "".join(f"{unit} loaded active running Astha\n" for unit in sorted(self.units_running))
            case ["show", *_, unit]:
                state = "active" if unit in self.units_running else "failed"
                return 0, f"ActiveState={state}\nStatusText=leading; components: none\nNRestarts=0\n"
        return 0, ""

    def _astha(self, version: str, arguments: list[str]) -> tuple[int, str]:
        if f"{version} {' '.join(arguments[:2])}" in self.failing:
            return 1, ""
        wanted, state = SCHEMAS[version], self.state_for(version)
        match arguments:
            case ["registry", "status", "--json"]:
                shown = json.dumps({"state": state, "found": self.schema or None, "expected": wanted})
                return 0 if self._usable(version) else 1, shown
            case ["registry", "migrate"]:
                if state == "new":
                    return 2, ""
                self.schema = self.schema if state == "compatible" else wanted
            case ["registry", "migrate", "--revision", revision, "--yes"]:
                if state in ("compatible", "new"):
                    return 2, ""  # it does not know how
                self.schema = revision
            case ["check"]:
                return 0 if self._usable(version) else 1, ""
        return 0, ""

    def state_for(self, version: str) -> SchemaState:
        """The rule of registry.migrate.schema_status: a version knows its own revision and all earlier ones."""
        wanted = SCHEMAS[version]
        if not self.schema:
            return "missing"
        if self.schema <= wanted:
            return "current" if self.schema == wanted else "old"
        return "compatible" if self.compatible_from.get(self.schema, self.schema) <= wanted else "new"

    def _usable(self, version: str) -> bool:
        return self.state_for(version) in ("current", "compatible")
