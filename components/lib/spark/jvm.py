"""The JVM in which a session lives: found, started, watched, ended."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from astha.redaction import Concealment
from components.lib.spark.errors import SessionLost, SessionProblem
from components.lib.spark.jvm_log import LogRelay
from components.lib.spark.work_dir import Scratch

OLDEST_JAVA = 17
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_LOOK_EVERY_S = 0.02
_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # of a JVM that writes one command line and ends
_SHORT_ENOUGH = 60  # bytes of a directory for a socket with a long name: the whole path may have about 100
_NOISE = ("\tat ", "WARNING: Using incubator modules")
_WAY_OUT = f"install Java {OLDEST_JAVA} or newer (a headless JRE is enough), or set JAVA_HOME to one"


def find_java(given: Mapping[str, str] | None = None) -> str:
    """As Spark's own scripts look for it, and run with the environment that is given. SessionProblem if there is none,
    or one that Spark can't use.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise SessionProblem(f"there is no java on the PATH, and Spark needs one: {_WAY_OUT}")
    try:
        told = subprocess.run(  # noqa: S603
            [found, "-version"], capture_output=True, text=True, timeout=60, check=False, env=given
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SessionProblem(f"{found} can't be run ({error}): {_WAY_OUT}") from error
    words = told.stderr + told.stdout
    version = re.search(r'version "(?:1\.)?(\d+)', words)
    if version is None:
        raise SessionProblem(f"{found} does not tell its version ({words.strip()[:200]!r}): {_WAY_OUT}")
    if int(version[1]) < OLDEST_JAVA:
        raise SessionProblem(f"{found} is Java {version[1]}, and Spark needs {OLDEST_JAVA}: {_WAY_OUT}")
    return found


class Jvm:
    """A gateway process of Spark. It ends by itself when this process does: its standard input closes."""

    def __init__(
        self, spark_home: Path, properties: Mapping[str, str], given: Mapping[str, str], conceal: Concealment
    ) -> None:
        """``given`` is its environment, to which is added what Spark wants to find there."""
        self._scratch = Scratch()
        here = self._scratch.path
        self._told = here / "gateway"
        self._settings = here / "spark.properties"
        environment = {
            "SPARK_LAUNCHER_OPTS": _LAUNCHER,
            **given,
            "SPARK_CONNECT_MODE": "0",
            "SPARK_LOCAL_DIRS": str(here),
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._told),
        }
        command = [str(spark_home / "bin" / "spark-submit"), "--properties-file", str(self._settings)]
        try:
            # In a file: what stands on a command line is seen by every user of the machine.
            self._settings.touch(0o600)
            self._settings.write_text(_written(_placed(properties, here)), encoding="utf-8")
            # A session of its own: an interrupt of the terminal is the daemon's to answer.
            self.process = subprocess.Popen(  # noqa: S603
                [*command, "--load-spark-defaults", "pyspark-shell"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                pass_fds=[self._scratch.lock],
            )
        except OSError as error:
            self._scratch.remove()
            raise SessionProblem(
                f"{command[0]} can't be run ({error}): is PySpark installed whole, and room in {here.parent}?"
            ) from error
        assert self.process.stdout is not None  # noqa: S101
        self._log = LogRelay(self.process.stdout, conceal)

    def address(self, limit_s: float) -> tuple[int, str]:
        """Port and secret of the gateway, once it listens. SessionProblem if it does not come up."""
        end = time.monotonic() + limit_s
        while not self._told.exists():
            code = self.process.poll()
            if code is not None and code < 0:
                raise SessionProblem(
                    f"the JVM was killed by signal {-code} while it started: see whether this machine has the memory"
                )
            if code is not None:
                raise SessionProblem(f"the JVM did not start (code {code}): {self._complaint()}")
            if time.monotonic() > end:
                raise SessionProblem(
                    f"the JVM did not start within {limit_s:.0f} s: look at the load of this machine, or raise start_s"
                )
            time.sleep(_LOOK_EVERY_S)
        content = self._told.read_bytes()
        port, length = struct.unpack_from(">ii", content)
        self._told.unlink()
        self._settings.unlink()  # read by now
        return port, content[8 : 8 + length].decode()

    def started(self) -> None:
        """From now on it is heard: nobody else tells what it has to say."""
        self._log.aloud = True

    def _complaint(self) -> str:
        """Its last words, without where in its code they come from."""
        words = self._log.last_words().splitlines()
        return "\n".join(line for line in words if not line.startswith(_NOISE))[-2_000:]

    def death(self) -> SessionLost:
        code = self.process.poll()
        if code is None:
            return SessionLost("the JVM of the Spark session does not answer any more")
        if code < 0:
            return SessionLost(f"the JVM of the Spark session was killed by signal {-code}")
        words = [line for line in self._log.last_words().splitlines() if "\t" in line or "Error" in line]
        shown = f": {words[-1]}" if words else ""
        return SessionLost(f"the JVM of the Spark session ended with code {code}{shown}")

    def end(self, limit_s: float) -> None:
        """Asked first, then made to."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._log.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._scratch.remove()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _placed(properties: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Libraries that unpack themselves do so there, too: a killed JVM does not remove them. A local JVM and its workers
    talk through sockets there: over TCP a small task waits for acknowledgements, some 30 ms of it.
    """
    placed = {**properties, JAVA_OPTIONS: f'-Djava.io.tmpdir="{directory}" {properties.get(JAVA_OPTIONS, "")}'.strip()}
    if properties.get("spark.master", "").startswith("local") and len(os.fsencode(directory)) <= _SHORT_ENOUGH:
        placed.setdefault("spark.python.unix.domain.socket.enabled", "true")
        placed.setdefault("spark.python.unix.domain.socket.dir", str(directory))
    return placed


def _written(properties: Mapping[str, str]) -> str:
    """As Java reads properties."""
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(
        f"{name} {''.join(escapes.get(letter, letter) for letter in value)}\n" for name, value in properties.items()
    )
