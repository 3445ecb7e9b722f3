#!/usr/bin/env python3
"""Installs, upgrades and removes Astha as a service of systemd. Needs root, Python 3.11 or newer, and no packages.

    installer.py install  astha-0.1.0-py3-none-any.whl --requirements requirements.txt
    installer.py upgrade  astha-0.2.0-py3-none-any.whl --requirements requirements.txt
    installer.py rollback                  # to the version before the last upgrade
    installer.py run -- registry migrate   # a command of astha with the user, settings and credentials of the service
    installer.py uninstall                 # leaves /etc/astha, /var/lib/astha and the user

Every version has a directory of its own, /opt/astha/VERSION; the symbolic link /opt/astha/current chooses one. A run
that was killed at any line is finished by running the same command again.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

FILES = Path(__file__).resolve().parent
DAEMONS = ("astha.service", "astha@.service")
VERIFICATION = ("astha-verify.timer", "astha-verify.service")
UNITS = (*DAEMONS, *VERIFICATION)
BACKOFF_SINCE = 254  # the version of systemd that knows RestartSteps and RestartMaxDelaySec
READY_WITHIN_S = 90.0
READY_FOR_S = 3.0
USABLE, TOO_NEW = ("current", "compatible"), "new"
"""States of a schema in `astha registry status --json`; the others, missing and old, are migrated."""
PROPERTIES = (
    "User=astha", "Group=astha", "UMask=0077", "StateDirectory=astha", "StateDirectoryMode=0750",
    "WorkingDirectory=/var/lib/astha", "LoadCredential=astha:/etc/astha/credentials",
    "EnvironmentFile=-/etc/astha/environment", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes",
    "NoNewPrivileges=yes",
)  # fmt: skip
"""What a command needs of astha.service to read and write what the service does."""


class Refused(Exception):
    """The message says what to do."""


class Host:
    """The machine, or with a root other than / a tree of files that is to become one: then nothing is started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live = root == Path("/")

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    def run(self, *command: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
        """Returns the output if ``quiet``, else the command writes to this program's output."""
        return subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE if quiet else None)  # noqa: S603

    def need(self, *command: str) -> None:
        done = self.run(*command)
        if done.returncode != 0:
            raise Refused(f"`{' '.join(command)}` failed with exit code {done.returncode}")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass
class Journal:
    """What an upgrade has changed and not yet finished or undone."""

    path: Path
    old: str = ""
    new: str = ""
    units: list[str] = field(default_factory=list)
    schemas: dict[str, str] = field(default_factory=dict)  # unit -> revision before the upgrade

    @property
    def open(self) -> bool:
        return self.path.exists()

    def read(self) -> Journal:
        if self.open:
            known = json.loads(self.path.read_text())
            self.old, self.new, self.units, self.schemas = (known[key] for key in ("old", "new", "units", "schemas"))
        return self

    def write(self) -> None:
        known = {"old": self.old, "new": self.new, "units": self.units, "schemas": self.schemas}
        write_whole(self.path, json.dumps(known))

    def close(self) -> None:
        self.path.unlink(missing_ok=True)


class Installation:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.base = host.path("/opt/astha")
        self.journal = Journal(self.base / ".upgrade")

    # Versions: a directory counts once its stamp is written, which is the last step.

    @property
    def current(self) -> str | None:
        return self._linked("current")

    @property
    def previous(self) -> str | None:
        return self._linked("previous")

    def _linked(self, name: str) -> str | None:
        link = self.base / name
        return link.readlink().name if link.is_symlink() else None

    def add_version(self, wheel: Path, requirements: Path, wheels: Path | None, python: str) -> str:
        """Makes /opt/astha/VERSION and returns its name. Does nothing if it is complete."""
        version = version_of(wheel)
        target, digest = self.base / version, digest_of(wheel, requirements)
        stamp = target / "complete"
        if stamp.exists():
            if stamp.read_text() == digest:
                return version
            if version in (self.current, self.previous):
                raise Refused(f"{version} is installed with other contents: build the wheel with another version")
        shutil.rmtree(target, ignore_errors=True)
        say(f"installing {version} into {target}")
        self._require_python(python)
        self.host.need(python, "-m", "venv", str(target))
        pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        offline = [] if wheels is None else ["--no-index", "--find-links", str(wheels)]
        self.host.need(*pip, *offline, "--require-hashes", "--requirement", str(requirements))
        self.host.need(*pip, "--no-index", "--no-deps", str(wheel))
        shutil.copytree(FILES, target / "systemd", ignore=shutil.ignore_patterns("__pycache__"))
        write_whole(stamp, digest)
        return version

    def _require_python(self, python: str) -> None:
        shown = self.host.run(python, "-c", "import sys; print(sys.base_prefix, *sys.version_info[:2])", quiet=True)
        if shown.returncode != 0:
            raise Refused(f"{python} does not run: name a Python 3.11 or newer with --python")
        prefix, major, minor = shown.stdout.rsplit(None, 2)
        if (int(major), int(minor)) < (3, 11):
            raise Refused(f"{python} is Python {major}.{minor}: name a Python 3.11 or newer with --python")
        if Path(prefix).parts[1:2] in (("root",), ("home",), ("tmp",)):
            raise Refused(f"the service can't see {prefix} (ProtectHome, PrivateTmp): name another with --python")

    def switch(self, version: str) -> None:
        """Makes the version the current one, with its units."""
        files, units = self.base / version / "systemd", self.host.path("/usr/local/lib/systemd/system")
        for unit in UNITS:
            if (files / unit).exists():
                copy(files / unit, units / unit)
            else:  # another version has it
                (units / unit).unlink(missing_ok=True)
        for unit in DAEMONS:
            drop_in = units / f"{unit}.d" / "backoff.conf"
            if self._systemd_version() >= BACKOFF_SINCE:
                copy(files / "backoff.conf", drop_in)
            else:
                drop_in.unlink(missing_ok=True)
        copy(files / "sysusers.conf", self.host.path("/usr/local/lib/sysusers.d/astha.conf"))
        link(self.base / "current", version)
        command = self.host.path("/usr/local/bin/astha")
        if command.is_symlink() or not command.exists():
            link(command, "/opt/astha/current/bin/astha")
        self.systemctl("daemon-reload")

    def add_settings(self, spark: bool) -> None:
        """Writes examples, never over a file that is there."""
        etc = self.host.path("/etc/astha")
        etc.mkdir(parents=True, exist_ok=True)
        (etc / "credentials").mkdir(mode=0o700, exist_ok=True)
        for example in sorted((FILES / "etc").iterdir()):
            if not (etc / example.name).exists():
                copy(example, etc / example.name)
                say(f"wrote {etc / example.name}")
        if spark:
            for unit in DAEMONS:
                drop_in = self.host.path(f"/etc/systemd/system/{unit}.d/spark.conf")
                if not drop_in.exists():
                    copy(FILES / "spark.conf", drop_in)
            self.systemctl("daemon-reload")
        if self.host.live:
            self.host.need("systemd-sysusers", "/usr/local/lib/sysusers.d/astha.conf")

    def remove(self) -> None:
        installed = self.host.path("/usr/local/lib/systemd/system")
        for unit in (*self.units("--all"), *(unit for unit in VERIFICATION if (installed / unit).exists())):
            self.systemctl("disable", "--now", unit)
        for unit in UNITS:
            self.host.path(f"/usr/local/lib/systemd/system/{unit}").unlink(missing_ok=True)
            shutil.rmtree(self.host.path(f"/usr/local/lib/systemd/system/{unit}.d"), ignore_errors=True)
        self.host.path("/usr/local/lib/sysusers.d/astha.conf").unlink(missing_ok=True)
        command = self.host.path("/usr/local/bin/astha")
        if command.is_symlink() and command.readlink() == Path("/opt/astha/current/bin/astha"):
            command.unlink()
        if self.base.exists():
            shutil.rmtree(self.base)
        self.systemctl("daemon-reload")

    # Units

    def systemctl(self, *arguments: str) -> None:
        if self.host.live:
            self.host.need("systemctl", *arguments)

    def units(self, *which: str) -> list[str]:
        """Returns the daemon and the followers that run, or that are about to."""
        if not self.host.live:
            return []
        states = [] if which else ["--state=active,activating,reloading,deactivating"]
        command = [
            "systemctl",
            "list-units",
            "--plain",
            "--no-legend",
            *states,
            *which,
            "astha.service",
            "astha@*.service",
        ]
        return [line.split()[0] for line in self.host.run(*command, quiet=True).stdout.splitlines() if line.strip()]

    def astha(self, version: str, unit: str, *arguments: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
        """Runs a command of that version as the unit would: same user, settings and credentials."""
        own = f"astha-command-{os.getpid()}.service"
        variables = [f"ASTHA_CONFIG={config_of(unit)}", f"ASTHA_SECRETS=/run/credentials/{own}"]
        if (group := group_of(unit)) is not None:
            variables.append(f"ASTHA_GROUP={group}")
        command = ["systemd-run", "--quiet", "--wait", "--collect", "--pipe", f"--unit={own}"]
        for setting in (*PROPERTIES, *(f"Environment={variable}" for variable in variables)):
            command += ["--property", setting]
        return self.host.run(*command, f"/opt/astha/{version}/bin/astha", *arguments, quiet=quiet)

    def schema(self, version: str, unit: str) -> tuple[str, str | None]:
        """Returns the state that the registry's schema has for this version, and the schema's revision."""
        done = self.astha(version, unit, "registry", "status", "--json", quiet=True)
        try:
            found = json.loads(done.stdout)
            return str(found["state"]), found["found"]
        except (ValueError, KeyError):
            raise Refused(f"the schema of {unit}'s registry could not be read") from None

    def wait_until_ready(self, unit: str) -> None:
        """Returns once the unit has led or stood by for some seconds without a restart."""
        deadline, since, restarts = time.monotonic() + READY_WITHIN_S, None, None
        while True:
            shown = self.host.run(
                "systemctl", "show", "-p", "ActiveState", "-p", "StatusText", "-p", "NRestarts", unit, quiet=True
            )
            state = dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)
            text = state.get("StatusText", "")
            good = state.get("ActiveState") == "active" and text.startswith(("leading", "standing by"))
            if not good or state.get("NRestarts") != restarts:
                since, restarts = None, state.get("NRestarts")
            if good and since is None:
                since = time.monotonic()
            if since is not None and time.monotonic() - since >= READY_FOR_S:
                say(f"{unit} is ready: {text}")
                return
            if state.get("ActiveState") == "failed" or time.monotonic() > deadline:
                raise Refused(f"{unit} did not become ready ({state.get('ActiveState')}: {text}): journalctl -u {unit}")
            self.host.sleep(0.25)

    def _systemd_version(self) -> int:
        try:
            found = re.match(r"systemd (\d+)", self.host.run("systemctl", "--version", quiet=True).stdout)
        except FileNotFoundError:  # where an image is made
            return 0
        return int(found[1]) if found else 0

    # Upgrades

    def upgrade(self, new: str) -> None:
        """Stops the units, migrates, switches, starts. Whatever goes wrong, the old version runs again afterwards."""
        journal = self.journal.read()
        old = journal.old if journal.open else self.current
        if old is None or old == new:
            raise Refused(f"{new} is the current version" if old else "nothing is installed: use install")
        units = list(dict.fromkeys([*journal.units, *self.units()]))
        pending = self._check_before(new, units)
        journal.old, journal.new, journal.units = old, new, units
        for unit in units:
            journal.schemas.setdefault(unit, self.schema(new, unit)[1] or "")
        journal.write()
        try:
            for unit in units:
                self.systemctl("stop", unit)
            for unit in units:
                self._must(new, unit, "registry", "migrate")
            for unit in pending:
                self._must(new, unit, "check")
            self.switch(new)
            for unit in units:
                self.systemctl("start", unit)
            for unit in units:
                self.wait_until_ready(unit)
        except BaseException as error:
            reason = str(error) or type(error).__name__
            say(f"the upgrade to {new} failed: {reason}; going back to {old}")
            try:
                self.go_back()
            except Refused as again:
                raise Refused(f"{again}; {old} does not run again yet: correct that, then rollback") from error
            raise Refused(f"{old} runs again. The upgrade to {new} failed: {reason}") from error
        link(self.base / "previous", old)
        journal.close()
        for child in self.base.iterdir():
            if (child / "complete").exists() and not child.is_symlink() and child.name not in (old, new):
                shutil.rmtree(child)

    def _check_before(self, new: str, units: Sequence[str]) -> list[str]:
        """Finds wrong settings and an unreachable registry while the old version still runs.

        Returns the units that can only be checked after the migration.
        """
        pending = []
        for unit in units:
            state, _ = self.schema(new, unit)
            if state == TOO_NEW:
                raise Refused(f"the registry of {unit} has a schema that is too new for {new}: nothing was changed")
            if state not in USABLE:
                pending.append(unit)
            elif self.astha(new, unit, "check").returncode != 0:
                raise Refused(f"`astha check` of {new} found problems for {unit}: nothing was changed")
        return pending

    def _must(self, version: str, unit: str, *arguments: str) -> None:
        if (code := self.astha(version, unit, *arguments).returncode) != 0:
            raise Refused(f"`astha {' '.join(arguments)}` for {unit} failed with exit code {code}")

    def go_back(self) -> None:
        """Undoes what the journal says, as far as it was done.

        A schema that the old version can use stays: a downgrade would drop what only the new one has.
        """
        journal = self.journal.read()
        for unit in journal.units:
            self.systemctl("stop", unit)
        for unit in journal.units:
            revision = journal.schemas.get(unit)
            if revision and self.schema(journal.old, unit)[0] == TOO_NEW:
                self._must(journal.new, unit, "registry", "migrate", "--revision", revision, "--yes")
        self.switch(journal.old)
        for unit in journal.units:
            self.systemctl("start", unit)
        for unit in journal.units:
            self.wait_until_ready(unit)
        journal.close()


def say(text: str) -> None:
    sys.stderr.write(f"installer: {text}\n")
    sys.stderr.flush()


def version_of(wheel: Path) -> str:
    found = re.fullmatch(r"astha-([0-9][0-9A-Za-z.+]*)-py3-none-any\.whl", wheel.name)
    if found is None or not wheel.is_file():
        raise Refused(f"{wheel} is no wheel of Astha: astha-VERSION-py3-none-any.whl")
    return found[1]


def digest_of(*paths: Path) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()


def group_of(unit: str) -> str | None:
    return unit.removeprefix("astha@").removesuffix(".service") if unit.startswith("astha@") else None


def config_of(unit: str) -> str:
    return f"/etc/astha/{group_of(unit) or 'astha'}.yaml"


def write_whole(path: Path, text: str) -> None:
    """The file has the old text or the new one, whenever the machine stops."""
    scratch = path.with_name(f"{path.name}.new")
    with scratch.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, scratch)
    scratch.chmod(0o644)
    scratch.replace(target)


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(target)
    scratch.replace(path)


@contextmanager
def alone(lock_file: Path) -> Iterator[None]:
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("another run of the installer is under way: wait until it has ended") from None
        yield


def install(installation: Installation, options: argparse.Namespace) -> None:
    version = version_of(options.wheel)
    if installation.journal.open:
        raise Refused("an upgrade was interrupted: run the same upgrade again, or rollback")
    if installation.current not in (None, version):
        raise Refused(f"{installation.current} is installed: use upgrade")
    installation.add_version(options.wheel, options.requirements, options.wheels, options.python)
    installation.switch(version)
    installation.add_settings(options.spark)
    say(f"installed {version}. Next: edit /etc/astha; {sys.argv[0]} run -- registry migrate; "
        f"{sys.argv[0]} run -- check; systemctl enable --now astha.service")  # fmt: skip


def upgrade(installation: Installation, options: argparse.Namespace) -> None:
    journal = installation.journal.read()
    version = version_of(options.wheel)
    if journal.open and journal.new != version:
        raise Refused(f"an upgrade to {journal.new} was interrupted: run it again, or rollback")
    if installation.current == version and not journal.open:
        say(f"{version} is the current version already")
        return
    installation.add_version(options.wheel, options.requirements, options.wheels, options.python)
    installation.upgrade(version)
    say(f"upgraded from {installation.previous} to {version}")
    if not journal.units:
        say(f"no unit was running, so no registry was migrated: {sys.argv[0]} run -- registry migrate")


def rollback(installation: Installation, _options: argparse.Namespace) -> None:
    if installation.journal.open:
        journal = installation.journal.read()
    elif (previous := installation.previous) is None or (current := installation.current) is None:
        raise Refused("there is no previous version")
    else:
        journal, units = installation.journal, installation.units()
        revision = {unit: _revision(installation, previous, unit) for unit in units}
        journal.old, journal.new, journal.units, journal.schemas = previous, current, units, revision
        journal.write()
    installation.go_back()
    (installation.base / "previous").unlink(missing_ok=True)
    say(f"{journal.old} is the current version")


def _revision(installation: Installation, version: str, unit: str) -> str:
    """Returns the schema revision that the version needs."""
    done = installation.astha(version, unit, "registry", "status", "--json", quiet=True)
    return str(json.loads(done.stdout)["expected"])


def uninstall(installation: Installation, _options: argparse.Namespace) -> None:
    installation.remove()
    say("removed. Still there: /etc/astha, /var/lib/astha and the user astha")


def run(installation: Installation, options: argparse.Namespace) -> int:
    if installation.current is None:
        raise Refused("nothing is installed")
    unit = "astha.service" if options.group is None else f"astha@{options.group}.service"
    return installation.astha(installation.current, unit, *options.arguments).returncode


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="installer.py", description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("/"), help="install into this tree, and start nothing")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("install", "install a first version"), ("upgrade", "replace the current version")):
        command = commands.add_parser(name, help=text)
        command.add_argument("wheel", type=Path)
        command.add_argument("--requirements", type=Path, required=True, help="pinned packages, with their hashes")
        command.add_argument("--wheels", type=Path, help="a directory with these packages, instead of an index")
        command.add_argument("--python", default=sys.executable, help="the Python to use; default: this one")
        if name == "install":
            command.add_argument("--spark", action="store_true", help="allow Spark's JVM in the units (spark.conf)")
    commands.add_parser("rollback", help="go back to the version before the last upgrade")
    commands.add_parser("uninstall", help="remove the programs and units, not settings and data")
    command = commands.add_parser("run", help="run a command of astha as the service does")
    command.add_argument("--group", help="with the settings of astha@GROUP.service")
    command.add_argument("arguments", nargs="+", metavar="ARGUMENT")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str], host: Host | None = None) -> int:
    options = parse(arguments)
    installation = Installation(host or Host(options.root))
    commands = {"install": install, "upgrade": upgrade, "rollback": rollback, "uninstall": uninstall}
    try:
        if options.command == "run":
            return run(installation, options)
        with alone(installation.host.path("/run/lock/astha-installer")):
            commands[options.command](installation, options)
    except Refused as error:
        say(str(error))
        return 1
    return 0


def _terminate(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    os.umask(0o022)
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(main(sys.argv[1:]))
