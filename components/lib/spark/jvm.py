"""The JVM of a session: found, started, watched, ended."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from astha.redaction import Redactor
from components.lib.spark.errors import SessionLost, SessionProblem
from components.lib.spark.jvm_log import LogRelay
from components.lib.spark.pyspark_internals import CONNECTION_FILE, read_connection
from components.lib.spark.work_dir import WorkDir

OLDEST_JAVA = 17
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_POLL_S = 0.02
_LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for the JVM that prints one command line
_MOST_SOCKET_DIR_BYTES = 60  # sockets have long names, and a path may have about 100 bytes
_NOISE = ("\tat ", "WARNING: Using incubator modules")
_WAY_OUT = f"install Java {OLDEST_JAVA} or newer (a headless JRE is enough), or set JAVA_HOME to one"


def find_java(environment: Mapping[str, str] | None = None) -> str:
    """Looks for Java as Spark's own scripts do; ``environment`` is what it runs with. Raises `SessionProblem` if there
    is none, or one that Spark can't use.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise SessionProblem(f"there is no java on the PATH, and Spark needs one: {_WAY_OUT}")
    try:
        run = subprocess.run(  # noqa: S603
            [found, "-version"], capture_output=True, text=True, timeout=60, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SessionProblem(f"{found} can't be run ({error}): {_WAY_OUT}") from error
    output = run.stderr + run.stdout
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None:
        raise SessionProblem(f"{found} does not report its version ({output.strip()[:200]!r}): {_WAY_OUT}")
    if int(version[1]) < OLDEST_JAVA:
        raise SessionProblem(f"{found} is Java {version[1]}, and Spark needs {OLDEST_JAVA}: {_WAY_OUT}")
    return found


class Jvm:
    """A gateway process of Spark. It exits when this process does, because its standard input closes."""

    def __init__(
        self, spark_home: Path, properties: Mapping[str, str], environment: Mapping[str, str], redact: Redactor
    ) -> None:
        """Adds to ``environment`` what Spark wants to find there."""
        self._work_dir = WorkDir()
        directory = self._work_dir.path
        self._connection_file = directory / "gateway"
        self._properties_file = directory / "spark.properties"
        variables = {
            "SPARK_LAUNCHER_OPTS": _LAUNCHER_OPTIONS,
            **environment,
            "SPARK_CONNECT_MODE": "0",
            "SPARK_LOCAL_DIRS": str(directory),
            CONNECTION_FILE: str(self._connection_file),
        }
        command = [str(spark_home / "bin" / "spark-submit"), "--properties-file", str(self._properties_file)]
        try:
            # In a file, because every user of the machine sees command lines.
            self._properties_file.touch(0o600)
            self._properties_file.write_text(
                _as_java_properties(_with_directory(properties, directory)), encoding="utf-8"
            )
            # A session of its own: only the daemon handles an interrupt from the terminal.
            self.process = subprocess.Popen(  # noqa: S603
                [*command, "--load-spark-defaults", "pyspark-shell"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
                pass_fds=[self._work_dir.lock],
            )
        except OSError as error:
            self._work_dir.remove()
            raise SessionProblem(
                f"{command[0]} can't be run ({error}): is all of PySpark installed, and space in {directory.parent}?"
            ) from error
        assert self.process.stdout is not None  # noqa: S101
        self._log = LogRelay(self.process.stdout, redact)

    def connection(self, limit_s: float) -> tuple[int, str]:
        """Waits until the gateway listens, and returns its port and secret. Raises `SessionProblem` if it does not."""
        end = time.monotonic() + limit_s
        while not self._connection_file.exists():
            code = self.process.poll()
            if code is not None and code < 0:
                raise SessionProblem(
                    f"the JVM was killed by signal {-code} while it started: check the memory of this machine"
                )
            if code is not None:
                raise SessionProblem(f"the JVM did not start (code {code}): {self._startup_output()}")
            if time.monotonic() > end:
                raise SessionProblem(
                    f"the JVM did not start within {limit_s:.0f} s: check this machine's load, or raise start_timeout_s"
                )
            time.sleep(_POLL_S)
        content = self._connection_file.read_bytes()
        self._connection_file.unlink()
        self._properties_file.unlink()  # the JVM has read it
        return read_connection(content)

    def started(self) -> None:
        """From now on its log is forwarded at its own levels."""
        self._log.quiet = False

    def _startup_output(self) -> str:
        """Returns its last lines, without stack traces."""
        lines = self._log.last_lines().splitlines()
        return "\n".join(line for line in lines if not line.startswith(_NOISE))[-2_000:]

    def lost(self) -> SessionLost:
        code = self.process.poll()
        if code is None:
            return SessionLost("the JVM of the Spark session no longer answers")
        if code < 0:
            return SessionLost(f"the JVM of the Spark session was killed by signal {-code}")
        lines = [line for line in self._log.last_lines().splitlines() if "\t" in line or "Error" in line]
        shown = f": {lines[-1]}" if lines else ""
        return SessionLost(f"the JVM of the Spark session ended with code {code}{shown}")

    def end(self, limit_s: float) -> None:
        """Closes its standard input, at which it exits; kills it after ``limit_s``."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._log.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._work_dir.remove()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _with_directory(properties: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Libraries that unpack themselves do so there too, because a killed JVM does not remove them. A local JVM and its
    workers talk through Unix sockets there: over TCP a small task waits some 30 ms for acknowledgements.
    """
    found = {**properties, JAVA_OPTIONS: f'-Djava.io.tmpdir="{directory}" {properties.get(JAVA_OPTIONS, "")}'.strip()}
    if properties.get("spark.master", "").startswith("local") and len(os.fsencode(directory)) <= _MOST_SOCKET_DIR_BYTES:
        found.setdefault("spark.python.unix.domain.socket.enabled", "true")
        found.setdefault("spark.python.unix.domain.socket.dir", str(directory))
    return found


def _as_java_properties(properties: Mapping[str, str]) -> str:
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(
        f"{name} {''.join(escapes.get(letter, letter) for letter in value)}\n" for name, value in properties.items()
    )
